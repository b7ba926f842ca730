package main

import (
	"context"

	"github.com/countd/countd/auth"
)

// openAuth opens the audit log and, unless --auth is off, the authorizer.
func (p *process) openAuth(c *config) (err error) {
	if c.Auth.AuditLog != "" {
		if p.audit, err = auth.OpenAuditLog(c.Auth.AuditLog, p.registry, p.logger); err != nil {
			return err
		}
	}
	if c.Auth.Mode == auth.Off {
		if c.Auth.RootToken != "" {
			p.logger.Warn("--root-token-file has no effect while --auth is off")
		}
		return nil
	}
	p.auth, err = auth.New(auth.Config{Mode: c.Auth.Mode, RootToken: c.Auth.RootToken, Audit: p.audit, Registry: p.registry, Logger: p.logger})
	return err
}

// followUsers keeps the authorizer up to date with the users of the cluster until closeAuth.
func (p *process) followUsers() {
	if p.auth == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // closeAuth cancels ctx and waits for this goroutine
		defer close(ended)
		p.auth.Follow(ctx, p.node)
	}()
	p.unfollow = func() { cancel(); <-ended }
}

// closeAuth ends followUsers and closes the audit log.
func (p *process) closeAuth() error {
	if p.unfollow != nil {
		p.unfollow()
	}
	return p.audit.Close()
}

package main

import (
	"context"
	"fmt"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cluster"
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

// reportRecovery writes what countctl recover did into the log and the audit log.
func (p *process) reportRecovery(r *cluster.Recovery) {
	groups := make([]string, len(r.Groups))
	for i := range r.Groups {
		g := &r.Groups[i]
		groups[i] = fmt.Sprintf("%s:%d", g.Name(), g.Index)
	}
	p.logger.Warn("countctl recover made this cluster from what survived of another; acknowledged writes may be lost",
		"at", r.At, "from", r.From, "to", r.To, "survivors", r.Nodes, "lost", r.Lost, "lost_groups", r.LostGroups(), "last_entries", groups)
	p.audit.Action(admin.AuditEvent{Time: r.At, What: "recover", Outcome: "ok", Target: fmt.Sprintf("cluster %s from %s, survivors %v, lost %v", r.To, r.From, r.Nodes, r.Lost)})
}

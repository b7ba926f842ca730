package nats

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/brokertest"
	"github.com/countd/countd/source/sink/sinktest"
)

// TestAccess tests a server with users, and with TLS and certificates of both sides.
func TestAccess(t *testing.T) {
	t.Parallel()
	a := brokertest.NewAccess(t)
	file := must.ReplaceFile(t, filepath.Join(a.Dir, "nats.conf"), fmt.Appendf(nil, `
tls: {cert_file: %q, key_file: %q, ca_file: %q, verify: true}
authorization: {users: [
  {user: writer, password: w}
  {user: countd, password: %[4]q, permissions: {
%[5]s} }
  {user: stranger, password: %[4]q, permissions: {publish: [dead.likes], subscribe: [_INBOX.>]} }
]}
`, a.Server.Cert, a.Server.Key, a.CA, brokertest.Password, brokertest.Documented(t, "(?s)```\n(publish: .*?)```")))
	server := proctest.StartNATS(t, "-c", file)
	q, _ := queueOf(t, server, nats.Secure(a.Writer()), nats.UserInfo("writer", "w"))
	q.Config += a.Fields() + "dead-letters: dead.likes\n"
	brokertest.Guarded(t, q, a, map[string]string{"password": "Authorization Violation", "clear": "signed by unknown authority"})

	q.Config = strings.Replace(q.Config, "username: countd", "username: stranger", 1)
	q.Start(t, sinktest.New(1, nil)).Stalls(t, `permissions violation: Permissions Violation for Publish to "$JS.API.STREAM.INFO.LIKES"`)
}

// TestToken checks that a password without a user is used as a token.
func TestToken(t *testing.T) {
	t.Parallel()
	a := brokertest.NewAccess(t)
	server := proctest.StartNATS(t, "--auth", brokertest.Password)
	q, _ := queueOf(t, server, nats.Token(brokertest.Password))
	q.Write(t, brokertest.Like(1, 1))
	c := sinktest.New(1, nil)
	q.Start(t, c).Stalls(t, "Authorization Violation")
	q.Config += "password-file: password\n"
	q.Secrets = a.Secrets()
	q.Start(t, c).Counts(t, c, 1)
}

// TestRefusedForAWhile: a source stalls when the server refuses its user. It continues once the
// server accepts the user again, without a change of the source's files.
func TestRefusedForAWhile(t *testing.T) {
	t.Parallel()
	a := brokertest.NewAccess(t)
	users := func(password string) string {
		return must.ReplaceFile(t, filepath.Join(a.Dir, "nats.conf"), fmt.Appendf(nil,
			"authorization: {users: [{user: writer, password: w}, {user: countd, password: %q}]}\n", password))
	}
	server := proctest.StartNATS(t, "-c", users(brokertest.Password))
	q, _ := queueOf(t, server, nats.UserInfo("writer", "w"))
	q.Config += "username: countd\npassword-file: password\n"
	q.Secrets = a.Secrets()
	c := sinktest.New(1, nil)
	q.Write(t, brokertest.Like(1, 1))
	r := q.Start(t, c)
	r.Counts(t, c, 1)
	users("another")
	server.Restart(t)
	r.Stalls(t, "Authorization Violation")
	users(brokertest.Password)
	server.Restart(t)
	q.Write(t, brokertest.Like(1, 1))
	r.Counts(t, c, 2)
}

// TestRefusedPull: if the user may not request messages, the reason of the stall says so. The
// library itself reports only a timeout.
func TestRefusedPull(t *testing.T) {
	t.Parallel()
	a := brokertest.NewAccess(t)
	server := proctest.StartNATS(t, "-c", must.ReplaceFile(t, filepath.Join(a.Dir, "nats.conf"), fmt.Appendf(nil,
		"authorization: {users: [{user: writer, password: w}, {user: countd, password: %q, permissions: {publish: {deny: \"$JS.API.CONSUMER.MSG.NEXT.>\"}}}]}\n", brokertest.Password)))
	q, _ := queueOf(t, server, nats.UserInfo("writer", "w"))
	q.Config += "username: countd\npassword-file: password\n"
	q.Secrets = a.Secrets()
	q.Start(t, sinktest.New(1, nil)).Stalls(t, `Permissions Violation for Publish to "$JS.API.CONSUMER.MSG.NEXT.LIKES`)
}

// TestOldDenial: an old denial is not the reason of a later timeout if the server has answered
// requests in between.
func TestOldDenial(t *testing.T) {
	t.Parallel()
	a := brokertest.NewAccess(t)
	server := proctest.StartNATS(t, "-c", must.ReplaceFile(t, filepath.Join(a.Dir, "nats.conf"), fmt.Appendf(nil,
		"authorization: {users: [{user: writer, password: w}, {user: countd, password: %q, permissions: {publish: {deny: forbidden}}}]}\n", brokertest.Password)))
	q, _ := queueOf(t, server, nats.UserInfo("writer", "w"))
	b := brokertest.BrokerOf(t, q.Config+"username: countd\npassword-file: password\n", source.Access{Password: brokertest.Password}, Open)
	if _, _, err := b.Bounds(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := b.mu.conn.Publish("forbidden", nil); err != nil {
		t.Fatal(err)
	}
	must.Become(t, "the server drops a request", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.mu.denied != nil
	})
	if _, _, err := b.Bounds(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if _, _, err := b.Bounds(late, 0); !errors.Is(err, context.DeadlineExceeded) || b.Denied(err) {
		t.Errorf("a request that is not answered: %v", err)
	}
}

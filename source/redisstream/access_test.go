package redisstream

import (
	"net"
	"strings"
	"testing"

	"github.com/countd/countd/internal/proctest"
	"github.com/countd/countd/source/brokertest"
	"github.com/countd/countd/source/sink/sinktest"
)

// TestAccess tests a Redis with users, and with TLS and certificates of both sides.
func TestAccess(t *testing.T) {
	q, client := newQueue(t, "")
	a := brokertest.NewAccess(t)
	port := proctest.FreePorts(t, 1)[0]
	_, number, _ := net.SplitHostPort(port)
	do := func(command ...any) {
		t.Helper()
		if err := client.Do(t.Context(), command...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	var rights []any
	do("CONFIG", "SET", "tls-cert-file", a.Server.Cert, "tls-key-file", a.Server.Key, "tls-ca-cert-file", a.CA, "tls-port", number)
	for _, word := range strings.Fields(brokertest.Documented(t, `(?m)^(ACL SETUSER countd .*)$`)) {
		rights = append(rights, strings.Replace(word, "PASSWORD", brokertest.Password, 1))
	}
	do(rights...)
	q.Config = strings.Replace(q.Config, client.Options().Addr, port, 1) + a.Fields()
	brokertest.Guarded(t, q, a, map[string]string{"password": "WRONGPASS"})

	for command, reason := range map[string]string{"xinfo": "user executing the script can't run", "xread": "NOPERM"} {
		rights[2] = "without-" + command
		do(append(rights, "-"+command)...)
		lacking := *q
		lacking.Config = strings.Replace(q.Config, "username: countd", "username: without-"+command, 1)
		lacking.Start(t, sinktest.New(1, nil)).Stalls(t, reason)
	}
}

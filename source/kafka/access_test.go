package kafka

import (
	"bytes"
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/countd/countd/source"
	"github.com/countd/countd/source/brokertest"
	"github.com/countd/countd/source/sink/sinktest"
)

// TestAccess tests each mechanism of SASL, over TLS with certificates of both sides.
func TestAccess(t *testing.T) {
	t.Parallel()
	for mechanism, name := range map[string]string{
		source.MechanismPlain: "PLAIN", source.MechanismScram256: "SCRAM-SHA-256", source.MechanismScram512: "SCRAM-SHA-512",
	} {
		t.Run(mechanism, func(t *testing.T) {
			t.Parallel()
			a := brokertest.NewAccess(t)
			pair, err := tls.LoadX509KeyPair(a.Server.Cert, a.Server.Key)
			if err != nil {
				t.Fatal(err)
			}
			c := newCluster(t, []kfake.Opt{
				kfake.EnableSASL(), kfake.Superuser("PLAIN", "writer", "w"), kfake.EnableACLs(), kfake.User(name, "stranger", brokertest.Password),
				kfake.User(name, "blind", brokertest.Password, right("likes", kmsg.ACLOperationRead)),
				kfake.User(name, "countd", brokertest.Password, right("likes", kmsg.ACLOperationRead), right("likes", kmsg.ACLOperationDescribeConfigs), right("likes.dead", kmsg.ACLOperationWrite)),
				kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: a.Pool()}),
			}, kgo.DialTLSConfig(a.Writer()), kgo.SASL(plain.Auth{User: "writer", Pass: "w"}.AsMechanism()))
			answerDenials(c, filepath.Join(a.Dir, "password"))
			q := c.queue()
			q.Config += "mechanism: " + mechanism + "\n" + a.Fields()
			brokertest.Guarded(t, q, a, map[string]string{"password": "invalid credentials", "clear": ""})

			for user, why := range map[string]string{"stranger": "TOPIC_AUTHORIZATION_FAILED", "blind": "grant DESCRIBE_CONFIGS"} {
				as := *q
				as.Config = strings.Replace(q.Config, "username: countd", "username: "+user, 1)
				as.Start(t, sinktest.New(1, nil)).Stalls(t, why)
			}
		})
	}
}

// right returns a permission on a topic. docs/SOURCES.md lists the permissions that a source needs.
func right(topic string, operation kmsg.ACLOperation) kfake.ACL {
	return kfake.ACL{Resource: kmsg.ACLResourceTypeTopic, Name: topic, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: operation, Allow: true}
}

// answerDenials makes a cluster answer a source whose password file has a wrong password with the
// error that Kafka sends. kfake alone would close the connection without an answer.
func answerDenials(c *cluster, file string) {
	c.ControlKey(int16(kmsg.SASLAuthenticate), func(request kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		message := request.(*kmsg.SASLAuthenticateRequest).SASLAuthBytes
		if password, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(password)) == brokertest.Password || bytes.Contains(message, []byte("writer")) {
			return nil, nil, false
		}
		response := request.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		response.ErrorCode = kerr.SaslAuthenticationFailed.Code
		text := "Authentication failed during authentication due to invalid credentials with SASL mechanism"
		response.ErrorMessage = &text
		return response, nil, true
	})
}

package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
)

// NodeURL keeps the scheme that an address has on the command line. Any other address gets https if
// an address on the command line has https, so that no token is sent in the clear.
func TestNodeURL(t *testing.T) {
	for _, one := range []struct{ addrs, node, want string }{
		{"http://n1:1", "n1:1", "http://n1:1"},
		{"http://n1:1", "n2:1", "http://n2:1"},
		{"https://n1:1", "n2:1", "https://n2:1"},
		{"https://n1:1,http://n2:1", "n2:1", "http://n2:1"},
		{"http://n2:1,https://n1:1", "n1:1", "https://n1:1"},
		{"http://n2:1,https://n1:1", "n3:1", "https://n3:1"},
		{"https://n1:1,http://n2:1", "n3:1", "https://n3:1"},
		{"http://n1:1,https://n1:1", "n1:1", "https://n1:1"},
	} {
		server, err := client.New(client.Config{Addrs: strings.Split(one.addrs, ",")})
		if err != nil {
			t.Fatal(err)
		}
		if got := NodeURL(server, one.node); got != one.want {
			t.Errorf("%s: %s is at %s, want %s", one.addrs, one.node, got, one.want)
		}
	}
}

// If any address on the command line has TLS, a client of one node does not send the token in the
// clear after a redirect.
func TestTokenAfterARedirect(t *testing.T) {
	tokens := make(chan string, 1)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tokens <- r.Header.Get("Authorization")
		io.WriteString(w, "{}")
	}))
	defer other.Close()
	named := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer named.Close()
	for addrs, want := range map[string]string{named.URL: "Bearer secret", named.URL + ",https://n1:1": "", named.URL + ",HTTPS://n1:1": ""} {
		env := func(name string) string { return map[string]string{tokenEnv: "secret"}[name] }
		c := &CLI{Terminal: Terminal{Env: env}, addrs: strings.Split(addrs, ","), Timeout: time.Minute}
		server, err := c.Dial([]string{named.URL}, client.Retry{For: client.RetryNever})
		if err != nil {
			t.Fatal(err)
		}
		_, err = admin.New(server).Users(t.Context())
		server.Close()
		if err != nil {
			t.Fatal(err)
		}
		if got := <-tokens; got != want {
			t.Errorf("with %s the token is %q, want %q", addrs, got, want)
		}
	}
}

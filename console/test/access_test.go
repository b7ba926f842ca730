package console

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// TestAccess checks the console on three nodes with TLS and tokens, directly and below a prefix of a proxy:
//
//  1. Without a token, the console asks for one, and no page makes a call that the node refuses.
//  2. For a wrong token, the console says so.
//  3. An admin sees and does everything; a reader sees rows, and no button of an operator.
//  4. A revoked token ends the session.
func TestAccess(t *testing.T) {
	ca := must.NewAuthority(t)
	files := must.WriteCert(t, t.TempDir(), "tls", ca.Issue(must.NodeLeaf("n1")))
	file, root := writeToken(t)
	trust := &tls.Config{RootCAs: ca.Pool()}
	nodes := startCluster(t, func(n *proctest.Node) { n.UseTLS(trust); n.Token = root },
		"--tls-cert", files.Cert, "--tls-key", files.Key, "--auth", "enforce", "--root-token-file", file)
	n1 := nodes[0]
	seed(n1)
	n1.MustCall("PUT", "/v1/users/ann", map[string]any{"grants": []any{map[string]any{"role": "reader", "keyspaces": []string{"posts"}}}}, nil)
	var reader struct{ ID, Token string }
	n1.MustCall("POST", "/v1/users/ann/tokens", map[string]any{}, &reader)

	b := newBrowser(t)
	for name, console := range map[string]string{"directly": n1.URL + "/", "below a prefix": proxy(t, n1, trust) + "/prefix/"} {
		b.open(console, "home")
		b.awaitText("main h1", "Sign in")
		b.shoot("signin")

		b.signIn("ctd_k9_" + strings.Repeat("0", 64))
		b.awaitText("dialog .failed", "unauthenticated")
		b.click("dialog button", "Cancel")
		b.forgive() // the browser logs the 401

		b.signIn(root)
		b.awaitText("[data-test=verdict]", "All is well")
		b.goTo("row/posts/" + post)
		b.awaitText("[data-column=view]", "120,000")
		b.goTo("operate")
		b.awaitText("[data-drain=n2]", "alive")
		b.click("header button", "Sign out")
		b.awaitText("main h1", "Sign in")

		b.signIn(reader.Token)
		b.awaitText(".who", "ann")
		b.goTo("row/posts/" + post)
		b.awaitText("[data-column=view]", "120,000")
		const buttons = "[...document.querySelectorAll('main button')].map(e => e.textContent).join()"
		if found := evaluate[string](b, buttons); found != "Look up,Copy,Copy" {
			t.Errorf("%s: a reader of a row sees %s", name, found)
		}
		b.goTo("keyspaces")
		b.await("!!document.querySelector('[data-keyspace=posts]')")
		if found := evaluate[string](b, buttons); found != "Copy" {
			t.Errorf("%s: a reader of the keyspaces sees %s", name, found)
		}
		b.goTo("hot/posts/view")
		b.awaitText("[aria-label='Largest counts'] tbody", "120,000")
		if found := evaluate[string](b, buttons); found != "Copy,Copy,Copy,Copy" {
			t.Errorf("%s: a reader of hot ids sees %s", name, found)
		}
		b.goTo("home")
		b.awaitText("main", "role metrics or admin")
		if found := evaluate[string](b, "[...document.querySelectorAll('nav a, main button')].map(e => e.textContent).join()"); found != "Home,Keyspaces,Row,Hot now,User,Runbook" {
			t.Errorf("%s: a reader sees %s", name, found)
		}
		b.goTo("operate")
		b.awaitText("main", "Only a user with the role admin")
	}
	refused := regexp.MustCompile(`(?m)^countd_auth_refused_total.* [1-9].*$`).FindAllString(n1.Text("/metrics"), -1)
	if want := []string{`countd_auth_refused_total{reason="bad_token"} 2`}; !slices.Equal(refused, want) {
		t.Errorf("the pages made calls that were refused: %q, want %q", refused, want)
	}
	b.goTo("row/posts/" + post)
	b.awaitText("[data-column=view]", "120,000")
	n1.MustCall("DELETE", "/v1/users/ann/tokens/"+reader.ID, nil, nil)
	b.awaitText("main h1", "Sign in")
	b.forgive() // the browser logs the 401
}

// signIn gives the page a token.
func (b *browser) signIn(token string) {
	b.t.Helper()
	b.click("main button", "Sign in")
	b.fill("token", token)
	b.click("dialog button", "Sign in")
}

// proxy serves a node below /prefix/, over HTTP, and returns its own address.
func proxy(t *testing.T, n *proctest.Node, trust *tls.Config) string {
	t.Helper()
	to, err := url.Parse(n.URL)
	must.Do(t, err)
	forward := httputil.NewSingleHostReverseProxy(to)
	forward.Transport = &http.Transport{TLSClientConfig: trust}
	server := httptest.NewServer(http.StripPrefix("/prefix", forward))
	t.Cleanup(server.Close)
	return server.URL
}

package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// closedNode is a node with --auth enforce, a root token and an audit log.
type closedNode struct {
	*proctest.Node
	t     *testing.T
	root  string // the root token
	file  string // file that holds the root token
	audit string // the audit log
}

// startClosed starts a node without users: it serves only calls with the root token.
func startClosed(t *testing.T) *closedNode {
	t.Helper()
	c := &closedNode{t: t, root: hexOf("root token")[:40] + "!", file: filepath.Join(t.TempDir(), "root"), audit: filepath.Join(t.TempDir(), "audit.log")}
	must.Do(t, os.WriteFile(c.file, []byte(c.root+"\n"), 0o600))
	c.Node = proctest.NewNode(t, bin, filepath.Join(t.TempDir(), "data"), "--auth", "enforce", "--root-token-file", c.file, "--audit-log", c.audit)
	c.Token = c.root
	c.StartReady()
	return c
}

// asRoot runs countctl with the root token, and returns its output.
func (c *closedNode) asRoot(args ...string) string {
	c.t.Helper()
	return c.MustCtl(append([]string{"--token-file", c.file}, args...)...)
}

// tokenOf creates a user and returns a token of that user.
func (c *closedNode) tokenOf(user string, grants ...string) string {
	c.t.Helper()
	args := []string{"user", "create", user}
	for _, g := range grants {
		args = append(args, "--grant", g)
	}
	c.asRoot(args...)
	return strings.TrimSpace(c.asRoot("token", "create", user))
}

// hexOf returns 64 hexadecimal digits that depend on text.
func hexOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// misplace makes calls with a token. The calls contain the token, or one of the secrets, in places
// where no secret belongs.
func (c *closedNode) misplace(token string, secrets []string) {
	c.t.Helper()
	for _, other := range append(secrets, token) {
		for _, call := range [][3]string{
			{"GET", "/v1/counters/posts/1", ""},
			{"POST", "/v1/counters/posts/incr", `{"ops":[{"id":1,"add":{"like":1}}]}`},
			{"GET", "/v1/counters/posts/" + other, ""},
			{"GET", "/v1/counters/" + other + "/1", ""},
			{"GET", "/v1/counters/posts/1?token=" + other, ""},
			{"POST", "/v1/counters/posts/incr", `{"token":"` + other + `"}`},
			{"POST", "/v1/keyspaces", `{"name":"` + other + `","columns":["a"]}`},
			{"DELETE", "/v1/users/web/tokens/" + other, ""},
			{"DELETE", "/v1/users/" + url.PathEscape(other) + "?token=" + other, ""},
			{"PUT", "/v1/users/" + strings.Replace(other, "_", "%5F", 2), `{"grants":[{"role":"` + other + `"}]}`},
			{"PUT", "/v1/sources/" + other, `{"type":"` + other + `"}`},
			{"POST", "/v1/admin/nodes/" + other + "/drain", "{}"},
			{"POST", "/v1/admin/sources", `{"name":"` + other + `"}`},
			{"POST", "/v1/notices/" + other, "{}"},
			{"GET", "/" + other, ""},
		} {
			r, err := http.NewRequest(call[0], c.URL+call[1], strings.NewReader(call[2]))
			must.Do(c.t, err)
			r.Header.Set("Authorization", "Bearer "+token)
			r.Header.Set("Idempotency-Key", other)
			r.Header.Set("User-Agent", other)
			answer, err := http.DefaultClient.Do(r)
			must.Do(c.t, err)
			_, _ = io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
		}
		c.redis("AUTH "+token, "GET "+other, other+" x", "CLIENT SETNAME "+other, "INCR posts:"+other+":like", "INCR posts:1:like", "AUTH "+other+" "+token,
			"HELLO 3 AUTH default "+token+" SETNAME "+other, "HELLO 3 AUTH "+other+" "+token, "COUNTD.INCR posts:2:like 1 KEY "+other)
	}
}

// redis sends lines on one connection, and waits until the node has answered them all.
func (c *closedNode) redis(lines ...string) {
	c.t.Helper()
	conn, err := net.Dial("tcp", c.Redis)
	must.Do(c.t, err)
	defer conn.Close()
	must.Do(c.t, conn.SetDeadline(time.Now().Add(must.BecomeMax)))
	_, err = io.WriteString(conn, strings.Join(append(lines, "QUIT"), "\r\n")+"\r\n")
	must.Do(c.t, err)
	_, err = io.Copy(io.Discard, bufio.NewReader(conn))
	must.Do(c.t, err)
}

// TestTokensAreInNoFile uses right and wrong tokens over HTTP and Redis, even in paths, queries,
// bodies and names. It kills and restarts the node, and makes a backup, a debug bundle and
// snapshots. Then
//
//  1. no file, log or output contains a part of a token, not even in hexadecimal or base64;
//  2. the same search finds the hash of a token in the files, so the search works.
func TestTokensAreInNoFile(t *testing.T) {
	long(t)
	t.Parallel()
	c := startClosed(t)
	web, ann := c.tokenOf("web", "writer:posts,unread"), c.tokenOf("ann", "admin")
	revoked := strings.TrimSpace(c.asRoot("token", "create", "web"))
	id, _, _ := strings.Cut(strings.TrimPrefix(revoked, "ctd_"), "_")
	c.asRoot("token", "revoke", "web", id)
	wrong, plain := "ctd_k1_"+hexOf("wrong"), hexOf("plain")[:48]
	all := []string{c.root, web, ann, revoked, wrong}
	use := func() {
		for _, token := range []string{web, ann, c.root, wrong, revoked} {
			c.misplace(token, all)
		}
		c.redis("AUTH "+plain, "AUTH web "+plain)
		_, err := c.Send(t.Context(), "GET", "/v1/version", http.Header{"Authorization": {"Bearer " + plain}}, nil, nil)
		must.Do(t, err)
	}
	use()
	output := c.Log()
	c.Kill()
	c.StartReady()
	eventually(t, "the node trusts its users", func() bool {
		status, err := c.Send(t.Context(), "GET", "/v1/version", http.Header{"Authorization": {"Bearer " + web}}, nil, nil)
		return err == nil && status == http.StatusOK
	})
	c.redis("AUTH "+wrong, "AUTH "+web, "INCR posts:1:like", wrong, "AUTH web "+ann)
	out := t.TempDir()
	c.asRoot("backup", filepath.Join(out, "backup"))
	c.asRoot("debug", "bundle", filepath.Join(out, "bundle.tar.gz"))
	c.snapshots(out)
	for _, args := range [][]string{{"user", "list"}, {"user", "show", "web", "-o", "json"}, {"token", "list", "web"}, {"audit", "tail", "-n", "1000", "-o", "json"}, {"status"}} {
		output += c.asRoot(args...)
	}
	output += c.Text("/metrics")
	c.Stop()
	output += c.Log()
	must.Do(t, os.WriteFile(filepath.Join(out, "output"), []byte(output), 0o600))

	files := contentsOf(t, c.Dir, filepath.Dir(c.audit), out)
	for _, token := range append(all, plain) {
		secret := strings.TrimSuffix(token, "!") // names of keyspaces, channels and users may not end with !, so calls also contain the token without the !
		if strings.HasPrefix(token, "ctd_") {
			secret = token[len("ctd_k1_"):]
		}
		for path, content := range files {
			if form := secretIn(content, secret); form != "" {
				t.Errorf("%s has a part of the token %s: %s", path, token, form)
			}
		}
	}
	hash := sha256.Sum256([]byte(web))
	if stored := hex.EncodeToString(hash[:]); !anyHas(files, c.Dir, stored) {
		t.Error("no file of the data directory has the hash of a token, so the search proves nothing")
	}
	for _, want := range []string{"ctd_k1_…", `"who":"ann"`} {
		if !anyHas(files, c.audit, want) {
			t.Errorf("the audit log has no %s", want)
		}
	}
}

// snapshots writes a snapshot of each shard into a directory.
func (c *closedNode) snapshots(dir string) {
	c.t.Helper()
	var view struct{ Groups []struct{ ID uint32 } }
	c.MustCall("GET", "/v1/admin/groups", nil, &view)
	for _, g := range view.Groups {
		r, err := http.NewRequestWithContext(context.Background(), "GET", fmt.Sprintf("%s/v1/admin/groups/%d/snapshot", c.URL, g.ID), nil)
		must.Do(c.t, err)
		r.Header.Set("Authorization", "Bearer "+c.root)
		answer, err := http.DefaultClient.Do(r)
		must.Do(c.t, err)
		content, err := io.ReadAll(answer.Body)
		must.Do(c.t, err)
		answer.Body.Close()
		must.Do(c.t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("snapshot-%d", g.ID)), content, 0o600))
	}
	if len(view.Groups) == 0 {
		c.t.Error("no group has a snapshot")
	}
}

// contentsOf returns the contents of all files under dirs, by path. It returns a compressed file
// both as it is and unpacked.
func contentsOf(t *testing.T, dirs ...string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			files[path] = content
			if unzip, zipped := gzip.NewReader(bytes.NewReader(content)); zipped == nil {
				whole, err := io.ReadAll(unzip)
				must.Do(t, err)
				files[path+" unzipped"] = whole
			}
			return err
		})
		must.Do(t, err)
	}
	return files
}

// anyHas reports whether a file under the path contains the text.
func anyHas(files map[string][]byte, under, text string) bool {
	for path, content := range files {
		if strings.HasPrefix(path, under) && bytes.Contains(content, []byte(text)) {
			return true
		}
	}
	return false
}

// secretIn returns the form in which content contains a part of the secret, or "". It searches for
// parts that are too long to occur by chance, and short enough that compression leaves some of them
// intact.
func secretIn(content []byte, secret string) (form string) {
	const part = 12
	raw, _ := hex.DecodeString(secret)
	forms := map[string][]byte{
		"text": []byte(secret), "upper case": []byte(strings.ToUpper(secret)), "bytes": raw, "text in hex": []byte(hex.EncodeToString([]byte(secret))),
	}
	for shift := range 3 { // the offset of the secret in a base64 group of three bytes
		for name, of := range map[string][]byte{"text": []byte(secret), "bytes": raw} {
			for kind, encoding := range map[string]*base64.Encoding{"base64": base64.StdEncoding, "URL base64": base64.URLEncoding} {
				coded := encoding.EncodeToString(append(make([]byte, shift), of...))
				forms[fmt.Sprintf("%s in %s, shifted %d", name, kind, shift)] = []byte(coded[4 : len(coded)-4])
			}
		}
	}
	for name, whole := range forms {
		for _, window := range [][]byte{whole[:part], whole[len(whole)/2-part/2 : len(whole)/2+part/2], whole[len(whole)-part:]} {
			if bytes.Contains(content, window) {
				return name
			}
		}
	}
	return ""
}

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// The sites of examples/, in each language, do what docs/GUIDE.md says.
func TestSites(t *testing.T) {
	t.Parallel()
	node := proctest.NewNode(t, bin, t.TempDir())
	node.StartReady()
	goSite := filepath.Join(t.TempDir(), "site")
	must.Do(t, exec.Command("go", "build", "-o", goSite, "../../../examples/go").Run())
	for i, command := range [][]string{{goSite}, {"python3", "../../../examples/python/site.py"}, {"node", "../../../examples/js/site.mjs"}} {
		t.Run(command[0][strings.LastIndex(command[0], "/")+1:], func(t *testing.T) {
			if _, err := exec.LookPath(command[0]); err != nil {
				t.Skip(err)
			}
			if len(command) > 1 { // so that a change of the site runs the test again
				_, err := os.ReadFile(command[1])
				must.Do(t, err)
			}
			if _, err := os.Stat("../../../clients/js/dist/esm/index.js"); err != nil && command[0] == "node" {
				t.Skip("clients/js is not built: make clients")
			}
			useSite(t, node, 1000*(i+1), command)
		})
	}
}

func useSite(t *testing.T, node *proctest.Node, users int, command []string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	must.Do(t, err)
	listener.Close()
	cmd := exec.Command(command[0], append(command[1:], port, node.URL)...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	must.Do(t, cmd.Start())
	stop := func(t testing.TB) {
		must.Do(t, cmd.Process.Signal(syscall.SIGTERM))
		if err := cmd.Wait(); err != nil {
			t.Errorf("the site ended with %v: %s", err, &log)
		}
	}
	author, reader := users+1, users+2
	call := func(as int, method, path string, status int) (answer json.RawMessage) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, fmt.Sprintf("http://127.0.0.1:%s%s?as=%d", port, path, as), http.NoBody)
		must.Do(t, err)
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			resp, err := http.DefaultClient.Do(request)
			if err != nil && time.Now().Before(end) {
				continue // the site is still starting
			}
			must.Do(t, err)
			answer, err = io.ReadAll(resp.Body)
			resp.Body.Close()
			must.Do(t, err)
			if resp.StatusCode != status {
				t.Fatalf("%s %s answers %d: %s", method, path, resp.StatusCode, answer)
			}
			return answer
		}
	}
	expect := func(as int, method, path, want string) {
		t.Helper()
		if why := cmpJSON([]byte(want), call(as, method, path, http.StatusOK)); why != "" {
			t.Errorf("%s %s: %s", method, path, why)
		}
	}
	follow, badge := fmt.Sprintf("/users/%d/follow", author), "/badge"
	expect(reader, "POST", follow, `{"unread":0}`)
	var post struct{ ID string }
	must.Do(t, json.Unmarshal(call(author, "POST", "/posts", http.StatusOK), &post))
	expect(reader, "GET", badge, `{"likes":0,"posts":1}`)
	expect(reader, "GET", "/home", fmt.Sprintf(`[{"id":%q,"author":"%d","counts":{"like":0},"liked":false}]`, post.ID, author))
	expect(reader, "GET", badge, `{"posts":0}`)
	like := fmt.Sprintf("/users/%d/posts/%s/like", author, post.ID)
	expect(reader, "POST", like, `{"likes":1}`)
	expect(reader, "POST", like, `{"likes":1}`)
	expect(reader, "GET", "/posts/"+post.ID, `{"counts":{"like":1},"liked":true}`)
	expect(reader, "DELETE", like, `{"likes":0}`)
	expect(reader, "POST", like, `{"likes":1}`)
	expect(author, "GET", badge, `{"likes":1}`)
	expect(author+9, "POST", like, `{"likes":2}`)
	expect(author, "POST", "/badge/seen/1", `{"likes":1}`)
	call(reader, "POST", "/users/99999999999999999999/follow", http.StatusBadRequest)
	call(reader, "GET", "//", http.StatusNotFound)
	stop(t)
	id, err := strconv.ParseUint(post.ID, 10, 64)
	must.Do(t, err)
	if views := node.Rows("posts", []string{post.ID})[0].Counts["view"]; views != 2 || id>>22 == 0 {
		t.Errorf("post %d has %d views", id, views)
	}
}

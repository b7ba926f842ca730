package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// guide is the page whose shell commands TestSites runs.
const guide = "../../../docs/GUIDE.md"

// In each language, the example site answers as docs/GUIDE.md shows. It uses a node with --auth
// enforce, as the user that the guide creates. While the node is down, a page fails within seconds,
// and the site logs the lost views.
func TestSites(t *testing.T) {
	long(t)
	t.Parallel()
	for _, site := range []struct{ program, script, client string }{
		{program: proctest.Build(t, "../../../examples/go", ".")},
		{"python3", "../../../examples/python/site.py", pythonClient},
		{"node", "../../../examples/js/site.mjs", jsClient},
	} {
		t.Run(filepath.Base(site.program), func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(site.program); err != nil {
				t.Skipf("%s is not installed; .ci/run installs it", site.program)
			}
			command := []string{site.program}
			if site.script != "" {
				if _, err := os.Stat(site.client); err != nil {
					t.Skip("clients/js is not built; make clients builds it")
				}
				proctest.Note(t, site.script, site.client)
				command = append(command, site.script)
			}
			useSite(t, command)
		})
	}
}

func useSite(t *testing.T, command []string) {
	proctest.Note(t, guide)
	text, err := os.ReadFile(guide)
	must.Do(t, err)
	page := string(text)
	node := startClosed(t)
	token := ""
	for _, line := range regexp.MustCompile("(?m)^countctl (user|token) .*").FindAllString(page, -1) {
		token = strings.TrimSpace(node.asRoot(strings.Fields(line)[1:]...))
	}
	addr := proctest.FreePorts(t, 1)[0]
	_, port, _ := net.SplitHostPort(addr)
	site := proctest.Serve(t, addr, "env", append(append([]string{"COUNTD_TOKEN=" + token}, command...), port, node.URL)...)
	post := typeGuide(t, page, addr)

	// An invalid id, and an unknown page.
	for path, status := range map[string]int{"/posts/99999999999999999999": http.StatusBadRequest, "/nothing": http.StatusNotFound} {
		if got, text := get(t, addr, path); got != status {
			t.Errorf("%s answers %d: %s", path, got, text)
		}
	}
	site.Stop(t)
	if views := node.Rows("posts", []string{post})[0].Counts["view"]; views != 2 {
		t.Errorf("post %s has %d views, not 2", post, views)
	}

	site = proctest.Serve(t, addr, "env", append(append([]string{"COUNTD_TOKEN=" + token}, command...), port, node.URL)...)
	node.Kill()
	if got, text := get(t, addr, "/posts/"+post); got != http.StatusServiceUnavailable {
		t.Errorf("without countd a page answers %d: %s", got, text)
	}
	site.Stop(t)
	if log := site.Log(); !strings.Contains(log, "lost 1 views of post "+post) || strings.Contains(log, "Traceback") || strings.Contains(log, "node:internal") {
		t.Errorf("the site that lost a view prints %q", log)
	}
}

// typeGuide runs the shell blocks of the guide in one shell, in order, and compares the output of
// each block. It returns the id of the new post.
func typeGuide(t *testing.T, page, addr string) (post string) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed; .ci/run installs it")
	}
	examples := regexp.MustCompile("(?s)```sh\n(.*?)```\n```out\n(.*?)```").FindAllStringSubmatch(page, -1)
	script := "set -e\n"
	for _, example := range examples {
		script += strings.ReplaceAll(example[1], "127.0.0.1:8000", addr) + "echo ---\n"
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Env = append(os.Environ(), "no_proxy=*")
	out, err := cmd.Output()
	blocks := strings.Split(strings.TrimSuffix(string(out), "---\n"), "---\n")
	if err != nil || len(blocks) != len(examples) || len(examples) < 4 {
		t.Fatalf("%d of %d examples ran: %v\n%s", len(blocks), len(examples), err, out)
	}
	post = strings.Fields(blocks[0])[1]
	same := strings.NewReplacer(post, "POST", "4467107636950632", "POST")
	views := regexp.MustCompile(`"view":\d+`)
	for i, example := range examples {
		got, want := lines(views.ReplaceAllString(same.Replace(blocks[i]), `"view":0`)), lines(views.ReplaceAllString(same.Replace(example[2]), `"view":0`))
		if got != want {
			t.Errorf("%sprints\n%swant\n%s", example[1], blocks[i], example[2])
		}
	}
	return post
}

// lines sorts the members of the object in each line of JSON by name.
func lines(text string) string {
	var all strings.Builder
	for line := range strings.Lines(text) {
		var value any
		d := json.NewDecoder(bytes.NewReader([]byte(line)))
		if d.Decode(&value) == nil {
			ordered, _ := json.Marshal(value)
			line = string(ordered) + "\n"
		}
		all.WriteString(line)
	}
	return all.String()
}

func get(t *testing.T, addr, path string) (status int, text []byte) {
	t.Helper()
	request, err := http.NewRequestWithContext(must.Context(t), http.MethodGet, "http://"+addr+path+"?as=7", http.NoBody)
	must.Do(t, err)
	resp, err := http.DefaultClient.Do(request)
	must.Do(t, err)
	defer resp.Body.Close()
	text, err = io.ReadAll(resp.Body)
	must.Do(t, err)
	return resp.StatusCode, text
}

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// Directories of the shared conformance script, and of the clients in other languages.
const (
	conformance  = "../../../clients/conformance"
	pythonClient = "../../../clients/python/countd"
	jsClient     = "../../../clients/js/dist/esm" // built by make clients
)

// speaker is a client library that the test calls through a driver: see
// clients/conformance/README.md.
type speaker struct {
	name string
	base int // the id that @0 in the script stands for
	ask  func(line []byte) ([]byte, error)
}

// said is a driver's answer to one call.
type said struct {
	OK    json.RawMessage `json:"ok"`
	Error json.RawMessage `json:"error"`
}

// The clients of Go, JavaScript and Python give the same answers. They count exactly even if requests are cut off,
// delayed and duplicated, and while nodes are killed.
func TestClientsConform(t *testing.T) {
	long(t)
	beside(t)
	c := newCluster(t, proctest.Options{Args: []string{"--key-horizon", "10m"}})
	for _, s := range speakers(t, c, func(n *proctest.Member) string { return n.URL }) {
		s.followScript(t)
	}
	faults := &faultyProxies{}
	drivers := speakers(t, c, func(n *proctest.Member) string { return faults.inFront(t, n.URL) })
	ended := make(chan struct{})
	var counting sync.WaitGroup
	for _, s := range drivers {
		counting.Go(func() { s.count(t) })
	}
	go func() { counting.Wait(); close(ended) }()
	for round := 0; ; round++ {
		n := c.Nodes()[round%3]
		select {
		case <-ended:
			for _, s := range drivers {
				s.checkCounts(t, c)
			}
			if faults.cut.Load() == 0 || faults.lost.Load() == 0 || faults.doubled.Load() == 0 || round == 0 {
				t.Errorf("%d requests were cut, %d answers lost, %d doubled, %d nodes killed", faults.cut.Load(), faults.lost.Load(), faults.doubled.Load(), round)
			}
			return
		case <-time.After(2 * time.Second):
			n.Kill()
			n.Start()
			c.AwaitReady(n)
		}
	}
}

// speakers starts a driver for each client whose language is installed. addr returns the address
// that the drivers use for a node.
func speakers(t *testing.T, c *proctest.Cluster, addr func(*proctest.Member) string) []*speaker {
	t.Helper()
	proctest.Note(t, conformance, pythonClient)
	var addrs []string
	for _, n := range c.Nodes() {
		addrs = append(addrs, addr(n))
	}
	all := []*speaker{{name: "go", ask: goDriver(t, addrs)}}
	start := func(name, program string, args ...string) {
		if _, err := exec.LookPath(program); err != nil {
			t.Logf("%s does not take part: %s is not installed; .ci/run installs it", name, program)
			return
		}
		all = append(all, &speaker{name: name, ask: startDriver(t, program, append(args, addrs...)...)})
	}
	start("threads", "python3", filepath.Join(conformance, "driver.py"), "threads")
	start("asyncio", "python3", filepath.Join(conformance, "driver.py"), "asyncio")
	if _, err := os.Stat(jsClient); err == nil {
		proctest.Note(t, jsClient)
		start("js", "node", filepath.Join(conformance, "driver.mjs"))
	} else {
		t.Log("js does not take part: clients/js is not built; make clients builds it")
	}
	for i, s := range all {
		s.base = 1_000_000 * (i + 1)
	}
	return all
}

// startDriver starts a driver, and stops it when the test ends.
func startDriver(t *testing.T, program string, args ...string) func([]byte) ([]byte, error) {
	cmd := exec.Command(program, args...)
	stdin, err := cmd.StdinPipe()
	must.Do(t, err)
	stdout, err := cmd.StdoutPipe()
	must.Do(t, err)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v: %s", program, err, &stderr)
		}
	})
	answers := bufio.NewReader(stdout)
	return func(line []byte) ([]byte, error) {
		if _, err := stdin.Write(append(line, '\n')); err != nil {
			return nil, err
		}
		return answers.ReadBytes('\n')
	}
}

// call sends a call to the driver.
func (s *speaker) call(call string, args any) (said, error) {
	line, err := json.Marshal(map[string]any{"call": call, "args": args})
	if err != nil {
		return said{}, err
	}
	answer, err := s.ask(line)
	if err != nil {
		return said{}, fmt.Errorf("%s gave no answer to %s: %w", s.name, call, err)
	}
	var is said
	return is, json.Unmarshal(answer, &is)
}

var ofScript = regexp.MustCompile(`@[0-9]+`)

// followScript makes the calls of the script and compares the answers.
func (s *speaker) followScript(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(conformance, "script.json"))
	must.Do(t, err)
	text = ofScript.ReplaceAllFunc(text, func(at []byte) []byte {
		n, _ := strconv.Atoi(string(at[1:]))
		return strconv.AppendInt(nil, int64(s.base+n), 10)
	})
	text = bytes.ReplaceAll(text, []byte("$"), []byte(s.name))
	var steps []struct {
		Call        string
		Args        json.RawMessage
		Want, Error json.RawMessage
	}
	must.Do(t, json.Unmarshal(text, &steps))
	for i, step := range steps {
		got, err := s.call(step.Call, step.Args)
		if err != nil {
			t.Fatal(err)
		}
		if why := cmpJSON(step.Want, got.OK) + cmpJSON(step.Error, got.Error); why != "" {
			t.Errorf("step %d, %s says to %s %s: %s\nok: %s\nerror: %s", i, s.name, step.Call, step.Args, why, got.OK, got.Error)
		}
	}
}

// cmpJSON returns how an answer differs from the one wanted, or "".
func cmpJSON(want, got []byte) string {
	if (want == nil) != (got == nil) {
		return "only one of both is there"
	}
	if want == nil {
		return ""
	}
	decode := func(text []byte) (v any) {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&v); err != nil {
			return err
		}
		return v
	}
	return missing(decode(want), decode(got))
}

func missing(want, got any) string {
	switch w := want.(type) {
	case map[string]any:
		g, _ := got.(map[string]any)
		for name, value := range w {
			has, is := g[name]
			if !is {
				return name + " is missing"
			}
			if why := missing(value, has); why != "" {
				return name + ": " + why
			}
		}
		return ""
	case []any:
		g, _ := got.([]any)
		if len(g) != len(w) {
			return fmt.Sprintf("%d items, want %d", len(g), len(w))
		}
		for i := range w {
			if why := missing(w[i], g[i]); why != "" {
				return fmt.Sprintf("%d: %s", i, why)
			}
		}
		return ""
	}
	if want != "*" && !reflect.DeepEqual(want, got) {
		return fmt.Sprintf("%v, want %v", got, want)
	}
	return ""
}

// Each driver increments each of countIDs rows countEach times by single calls, and countEach times
// by its Writer.
const (
	countIDs  = 20
	countEach = 40
	countBase = 500_000
)

func (s *speaker) ids(each int) (ids []string) {
	for range each {
		for i := range countIDs {
			ids = append(ids, strconv.Itoa(s.base+countBase+i))
		}
	}
	return ids
}

func (s *speaker) count(t *testing.T) {
	got, err := s.call("count", []any{"posts", "repost", s.ids(countEach), 8})
	if err != nil || got.Error != nil {
		t.Errorf("%s cannot count: %v %s", s.name, err, got.Error)
	}
}

func (s *speaker) checkCounts(t *testing.T, c *proctest.Cluster) {
	for _, row := range c.Nodes()[0].Rows("posts", s.ids(1)) {
		if row.Counts["repost"] != 2*countEach {
			t.Errorf("%s counted row %s to %d, not to %d", s.name, row.ID, row.Counts["repost"], 2*countEach)
		}
	}
}

// faultyProxies are proxies between a client and the nodes. They make one request in four fail in
// some way.
type faultyProxies struct {
	cut, lost, doubled atomic.Int64
}

// inFront starts a proxy in front of a node, and returns the proxy's address.
func (f *faultyProxies) inFront(t *testing.T, node string) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.serve(w, r, node) }), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() { server.Close(); <-served })
	return "http://" + listener.Addr().String()
}

func (f *faultyProxies) serve(w http.ResponseWriter, r *http.Request, node string) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	pass := func() (*http.Response, []byte, error) {
		again, err := http.NewRequestWithContext(context.WithoutCancel(r.Context()), r.Method, node+r.URL.RequestURI(), bytes.NewReader(body))
		if err != nil {
			return nil, nil, err
		}
		again.Header = r.Header.Clone()
		resp, err := http.DefaultClient.Do(again)
		if err != nil {
			return nil, nil, err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return resp, text, err
	}
	lose, cut := false, 0
	switch rand.N(24) {
	case 0:
		f.cut.Add(1)
		panic(http.ErrAbortHandler)
	case 1, 2:
		f.lost.Add(1)
		lose = true
	case 3, 4:
		f.doubled.Add(1)
		if _, _, err := pass(); err != nil {
			panic(http.ErrAbortHandler)
		}
	case 5: // answer like a proxy that does not know whether the node has counted
		if _, _, err := pass(); err == nil {
			http.Error(w, "upstream", http.StatusServiceUnavailable)
			return
		}
	case 6:
		w.Header().Set("Retry-After", time.Now().Add(time.Second).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"error":{"code":"overloaded","message":"busy"}}`)
		return
	case 7:
		cut = 1 + rand.N(20)
	case 8:
		time.Sleep(time.Duration(rand.N(100)) * time.Millisecond)
	}
	resp, text, err := pass()
	if err != nil || lose {
		panic(http.ErrAbortHandler)
	}
	for name, values := range resp.Header {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(text[:max(len(text)-cut, 0)])
	if cut > 0 {
		panic(http.ErrAbortHandler)
	}
}

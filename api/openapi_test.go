package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"

	"net"
	"net/http"
	"os"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"go.yaml.in/yaml/v3"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/client/column"
	"github.com/countd/countd/raftfsm/catalog"
)

// contract is docs/openapi.yaml with the examples of testdata/contract.yaml. That file explains its
// fields.
type contract struct {
	doc *openapi3.T

	Seed   []exampleCase
	Sets   map[string][]string
	Shared map[string]answers
	Calls  map[string]struct {
		Shared  []string
		Answers answers `yaml:",inline"`
	}
}

// answers has the examples of a call by status and name.
type answers map[string]map[string]exampleCase

// exampleCase is a request and its answer, in the form of testdata/contract.yaml.
type exampleCase struct {
	Method, Path string
	Headers      map[string]string
	Body         any     // JSON
	Raw          *string // the body, not encoded
	BodyBytes    int     `yaml:"body_bytes"`
	HeaderBytes  int     `yaml:"header_bytes"`
	Unfinished   bool

	Setup  string
	Varies []string
	Value  any
}

// example is an answer of a call, and the request that gets it.
type example struct {
	exampleCase

	name      string
	path      string // template of the path
	method    string // method of the operation
	item      *openapi3.PathItem
	operation *openapi3.Operation
	status    int
}

func loadContract(t *testing.T) *contract {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("../docs/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
	c := &contract{doc: doc}
	text, err := os.ReadFile("testdata/contract.yaml")
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(c); err != nil {
		t.Fatalf("testdata/contract.yaml: %v", err)
	}
	return c
}

// operations calls the function use for each operation, with its method and path.
func (c *contract) operations(use func(method, path string, item *openapi3.PathItem, o *openapi3.Operation)) {
	for path, item := range c.doc.Paths.Map() {
		for method, o := range item.Operations() {
			use(method, path, item, o)
		}
	}
}

// examples lists every example of every call, in order.
func (c *contract) examples(t *testing.T) []example {
	t.Helper()
	var all []example
	known := map[string]bool{}
	c.operations(func(method, path string, item *openapi3.PathItem, o *openapi3.Operation) {
		call := method + " " + path
		known[call] = true
		merged := answers{"200": {"usual": {}}}
		for _, shared := range c.flat(t, c.Calls[call].Shared) {
			merged.add(shared)
		}
		merged.add(c.Calls[call].Answers)
		for status, cases := range merged {
			for name, of := range cases {
				e := example{exampleCase: of, name: name, path: path, method: method, item: item, operation: o}
				var err error
				if e.status, err = strconv.Atoi(status); err != nil {
					t.Fatalf("%s: status %s", call, status)
				}
				if name == "usual" && e.Value == nil {
					e.Value = exampleOf(contentOf(o, e.status))
				}
				if e.Value == nil {
					t.Errorf("%s %s %s has no answer", call, status, name)
				}
				all = append(all, e)
			}
		}
	})
	for call := range c.Calls {
		if !known[call] {
			t.Errorf("testdata/contract.yaml: docs/openapi.yaml has no call %s", call)
		}
	}
	slices.SortFunc(all, func(a, b example) int { return cmp.Compare(a.String(), b.String()) })
	return all
}

// flat returns the shared answers with the given names. A name may be that of a set; then flat
// returns all answers of the set.
func (c *contract) flat(t *testing.T, names []string) (all []answers) {
	t.Helper()
	for _, name := range names {
		if set, ok := c.Sets[name]; ok {
			all = append(all, c.flat(t, set)...)
		} else if shared, ok := c.Shared[name]; ok {
			all = append(all, shared)
		} else {
			t.Errorf("testdata/contract.yaml: nothing shared is named %s", name)
		}
	}
	return all
}

func (a answers) add(more answers) {
	for status, cases := range more {
		if a[status] == nil {
			a[status] = map[string]exampleCase{}
		}
		maps.Copy(a[status], cases)
	}
}

// contentOf returns the definition of the body of an answer in docs/openapi.yaml, or nil.
func contentOf(o *openapi3.Operation, status int) *openapi3.MediaType {
	of := o.Responses.Status(status)
	if of == nil {
		of = o.Responses.Default()
	}
	return oneOf(of.Value.Content)
}

// requestOf returns the definition of the body of a request in docs/openapi.yaml, or nil.
func requestOf(o *openapi3.Operation) *openapi3.MediaType {
	if o.RequestBody == nil {
		return nil
	}
	return oneOf(o.RequestBody.Value.Content)
}

func oneOf(c openapi3.Content) *openapi3.MediaType {
	for _, content := range c {
		return content
	}
	return nil
}

func exampleOf(m *openapi3.MediaType) any {
	if m == nil {
		return nil
	}
	return m.Example
}

func (e example) String() string {
	return fmt.Sprintf("%s %s %d %s", e.method, e.path, e.status, e.name)
}

// requestBody returns the body of the example's request.
func (e example) requestBody(t *testing.T) string {
	t.Helper()
	switch {
	case e.Raw != nil:
		return *e.Raw
	case e.BodyBytes > 0:
		return strings.Repeat(" ", e.BodyBytes)
	}
	body := e.Body
	if body == nil {
		body = exampleOf(requestOf(e.operation))
	}
	switch body := body.(type) {
	case nil:
		if e.operation.RequestBody != nil && e.operation.RequestBody.Value.Required {
			t.Fatalf("%v: no request body", e)
		}
		return ""
	case string:
		return body
	}
	return string(jsonOf(t, body))
}

func jsonOf(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// takesStream reports whether the call's request is a stream and not JSON.
func (e example) takesStream() bool {
	return e.operation.RequestBody != nil && e.operation.RequestBody.Value.Content[contentTypeStream] != nil
}

// request returns the request of the example.
func (e example) request(t *testing.T, server string) (*http.Request, map[string]string) {
	t.Helper()
	target, parameters := e.path, map[string]string{}
	for _, ref := range slices.Concat(e.item.Parameters, e.operation.Parameters) {
		if p := ref.Value; p.In == "path" {
			parameters[p.Name] = p.Example.(string)
			target = strings.ReplaceAll(target, "{"+p.Name+"}", p.Example.(string))
		}
	}
	body := e.requestBody(t)
	r, err := http.NewRequest(cmp.Or(e.Method, e.method), server+cmp.Or(e.Path, target), strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if e.takesStream() {
		r.Header.Set("Content-Type", contentTypeStream)
	}
	for name, value := range e.Headers {
		r.Header.Set(name, value)
		if name == "Host" { // net/http does not treat it as a header
			r.Host = value
		}
	}
	if e.HeaderBytes > 0 {
		r.Header.Set("X-Filler", strings.Repeat("x", e.HeaderBytes))
	}
	return r, parameters
}

// replay sends the example's request and returns the answer.
func (e example) replay(t *testing.T, r *http.Request) reply {
	t.Helper()
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{response.StatusCode, response.Header, string(text)}
}

func (e example) replayUnfinished(t *testing.T, r *http.Request) reply {
	t.Helper()
	var text bytes.Buffer
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", r.URL.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(text.Bytes()[:text.Len()-1]); err != nil {
		t.Fatal(err)
	}
	return readReply(t, c)
}

// replayTarget is a backend against which the test replays the contract.
type replayTarget interface {
	// renew returns a server over a new backend.
	renew(t *testing.T) *fakeServer
	// has reports whether the backend can produce the example.
	has(e example) bool
}

// fakeTarget is a fakeNode, which can have any fault.
type fakeTarget struct{ *fakeServer }

func (f fakeTarget) renew(*testing.T) *fakeServer {
	f.node.reset()
	return f.fakeServer
}

func (fakeTarget) has(e example) bool { return !e.Unfinished }

// beforeBackend has the statuses that the server answers before it calls any backend.
var beforeBackend = []int{405, 408, 413, 431}

// TestOpenAPIExamples sends the request of every example to a live server and checks status,
// schema, headers and value of the answer: first with a fake node and then, if the example needs no
// fault of the node, with a real node.
func TestOpenAPIExamples(t *testing.T) {
	t.Parallel()
	c := loadContract(t)
	all := c.examples(t)
	for _, backend := range []struct {
		name   string
		target func(*testing.T) replayTarget
		least  int // least number of examples that must be replayed
	}{
		{"fake", func(t *testing.T) replayTarget { return fakeTarget{startFakeServer(t, nil)} }, 1200},
		{"real", func(t *testing.T) replayTarget { return newRealTarget(t) }, 400},
	} {
		t.Run(backend.name, func(t *testing.T) {
			if testing.Short() && backend.name == "real" {
				t.Skip("takes long: the fake one has all examples")
			}
			target, replayed := backend.target(t), 0
			var l *fakeServer
			seeded := ""
			for _, e := range all {
				if !target.has(e) {
					continue
				}
				replayed++
				// An example without effect leaves the node as it was, so the next example with the
				// same tags may use it.
				if tags := strings.Join(e.operation.Tags, " "); l == nil || seeded != tags {
					l = target.renew(t) // t is the outer test, because the server also serves later examples
					l.seed(t, c.Seed, e.operation.Tags)
					seeded = tags
				}
				t.Run(e.String(), func(t *testing.T) { e.mustHold(t, c, l) })
				if e.status < 300 || e.Setup != "" || t.Failed() {
					seeded = ""
				}
			}
			target.renew(t).wantGood()
			if replayed < backend.least {
				t.Errorf("%d examples were replayed", replayed)
			}
		})
	}
	t.Run("unfinished", func(t *testing.T) { testUnfinished(t, c, all) })
}

// testUnfinished sends the examples whose requests never end. It sends them concurrently, because
// each waits for a timeout.
func testUnfinished(t *testing.T, c *contract, all []example) {
	l := startFakeServer(t, func(c *Config) { c.ReadTimeout = time.Second })
	all = slices.DeleteFunc(slices.Clone(all), func(e example) bool { return !e.Unfinished })
	got := make([]reply, len(all))
	var wg sync.WaitGroup
	for i, e := range all {
		r, _ := e.request(t, "http://"+l.server.Addr().String())
		wg.Go(func() { got[i] = e.replayUnfinished(t, r) })
	}
	wg.Wait()
	for i, e := range all {
		t.Run(e.String(), func(t *testing.T) { e.wantAnswer(t, c, got[i]) })
	}
}

// mustHold replays the example and checks the answer.
func (e example) mustHold(t *testing.T, c *contract, l *fakeServer) {
	t.Helper()
	switch e.Setup {
	case "enforce":
		l = startEnforcing(t).fakeServer
	case "texts":
		l = startTexts(t)
		l.seedTexts()
	case "audit":
		l = startAuth(t, auth.Permissive, nil).fakeServer
	}
	end := l.setUp(e.Setup)
	defer end()
	r, _ := e.request(t, "http://"+l.server.Addr().String())
	e.wantAnswer(t, c, e.replay(t, r))
}

// seed puts a new node into the initial state of the examples. State that is not about counters is
// created only for examples that need it.
func (l *fakeServer) seed(t *testing.T, requests []exampleCase, tags []string) {
	t.Helper()
	for _, r := range requests {
		tag := "unread"
		if strings.HasPrefix(r.Path, "/v1/members/") {
			tag = "members"
		}
		if !slices.Contains(tags, tag) && !strings.HasPrefix(r.Path, "/v1/counters/posts/") {
			continue
		}
		body := ""
		if r.Raw != nil {
			body = *r.Raw
		}
		if got := l.do(r.Method, r.Path, body); got.status != 200 {
			t.Fatalf("seed is answered %d %s", got.status, got.body)
		}
	}
}

// setUp puts the server into the state that an example needs, such as a fault of its node. end
// removes the fault.
func (l *fakeServer) setUp(trouble string) (end func()) {
	if trouble == "in_flight" {
		full := int64(l.server.cfg.InFlightMax)
		l.server.inFlight.Add(full)
		return func() { l.server.inFlight.Add(-full) }
	}
	if trouble == "songs" {
		l.do("POST", "/v1/keyspaces", `{"name":"songs","columns":["play","like"],"shards":1}`)
		return func() {}
	}
	if users := l.setUpUsers(trouble); users && trouble != "web_behind" {
		return func() {}
	} else if users {
		trouble = "node_behind"
	}
	l.node.setFault(trouble)
	return func() { l.node.setFault("") }
}

// setUpUsers creates the users that an example needs. It reports whether the example needs no fault.
func (l *fakeServer) setUpUsers(trouble string) bool {
	switch trouble {
	case "enforce", "audit", "texts":
	case "web", "many_tokens", "web_behind":
		l.do("PUT", "/v1/users/web", `{"grants":[{"role":"writer","keyspaces":["posts","unread"]}]}`)
		l.do("POST", "/v1/users/web/tokens", "")
		for n := 1; trouble == "many_tokens" && n < catalog.UserTokensMax; n++ {
			l.do("POST", "/v1/users/web/tokens", "")
		}
	default:
		return false
	}
	return true
}

// wantAnswer checks the answer against the contract, and compares it with the example.
func (e example) wantAnswer(t *testing.T, c *contract, got reply) {
	t.Helper()
	if got.status != e.status {
		t.Fatalf("answered %d %s, want %d", got.status, got.body, e.status)
	}
	for _, header := range headersOf[e.status] {
		if got.header.Get(header) == "" {
			t.Errorf("the answer has no %s", header)
		}
	}
	e.wantSchema(t, c.doc, got)
	if slices.Equal(e.Varies, []string{"."}) {
		return
	}
	var answered, want any
	if err := json.Unmarshal([]byte(got.body), &answered); err != nil {
		t.Fatalf("answered %s: %v", got.body, err)
	}
	text := jsonOf(t, e.Value)
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	if forget(want, "token") && !forget(answered, "token") {
		t.Error("the answer has no token")
	}
	for _, member := range e.Varies {
		if !forget(answered, member) || !forget(want, member) {
			t.Errorf("%s varies but is not there", member)
		}
	}
	if !reflect.DeepEqual(answered, want) {
		t.Errorf("answered %s\nwant     %s", got.body, text)
	}
}

// headersOf has the headers of answers by status.
var headersOf = map[int][]string{401: {"WWW-Authenticate"}, 405: {"Allow"}, 429: {"Retry-After"}, 503: {"Retry-After"}, 307: {"Location"}}

// forget removes the member at a dotted path, and reports whether it existed.
func forget(v any, path string) bool {
	o, ok := v.(map[string]any)
	if !ok {
		return false
	}
	if first, rest, nested := strings.Cut(path, "."); nested {
		return forget(o[first], rest)
	}
	_, ok = o[path]
	delete(o, path)
	return ok
}

// wantSchema checks an answer against its schema. If the answer is a success, it checks the request
// too.
func (e example) wantSchema(t *testing.T, doc *openapi3.T, got reply) {
	t.Helper()
	r, parameters := e.request(t, "http://example")
	input := &openapi3filter.RequestValidationInput{
		Request:    r,
		PathParams: parameters,
		Route: &routers.Route{
			Spec: doc, Path: e.path, PathItem: e.item, Method: e.method, Operation: e.operation,
		},
	}
	if e.status < 300 {
		if err := openapi3filter.ValidateRequest(context.Background(), input); err != nil {
			t.Errorf("the request breaks the contract: %v", err)
		}
	}
	answer := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input,
		Status:                 got.status,
		Header:                 got.header,
		Body:                   io.NopCloser(strings.NewReader(got.body)),
		Options:                &openapi3filter.Options{IncludeResponseStatus: true},
	}
	if err := openapi3filter.ValidateResponse(context.Background(), answer); err != nil {
		t.Errorf("the answer breaks the contract: %v", err)
	}
	var body any
	if json.Unmarshal([]byte(got.body), &body) == nil {
		for _, problem := range newSeen(doc).see(contentOf(e.operation, e.status), body) {
			t.Errorf("the answer: %s", problem)
		}
	}
}

// TestOpenAPIIsWhole checks that the contract names all calls and codes of the server, and that
// each call has an example of each answer.
func TestOpenAPIIsWhole(t *testing.T) {
	c := loadContract(t)
	all := c.examples(t)

	t.Run("every endpoint", func(t *testing.T) {
		var documented []string
		c.operations(func(method, path string, _ *openapi3.PathItem, _ *openapi3.Operation) {
			documented = append(documented, method+" "+path)
		})
		sort.Strings(documented)
		if served := slices.Sorted(maps.Keys(servedEndpoints(t))); !slices.Equal(documented, served) {
			t.Errorf("documented %q\nserved     %q", documented, served)
		}
	})

	t.Run("every answer that the server gives for what a call takes", func(t *testing.T) {
		shown := map[string]bool{}
		for _, e := range all {
			shown[fmt.Sprintf("%s %s %d", e.method, e.path, e.status)] = true
		}
		for name, takes := range servedEndpoints(t) {
			for _, status := range answersOf(takes) {
				if !shown[fmt.Sprintf("%s %d", name, status)] {
					t.Errorf("%s: %d has no example", name, status)
				}
			}
		}
	})

	t.Run("every code", func(t *testing.T) {
		produced := map[string]bool{}
		for _, e := range all {
			if o, ok := e.Value.(map[string]any); ok {
				if fault, ok := o["error"].(map[string]any); ok {
					produced[fault["code"].(string)] = true
				}
			}
		}
		var documented []string
		for _, code := range c.doc.Components.Schemas["Code"].Value.Enum {
			documented = append(documented, code.(string))
			if !strings.Contains(c.doc.Info.Description, code.(string)) {
				t.Errorf("the table of errors does not have %s", code)
			}
		}
		sort.Strings(documented)
		if got := slices.Sorted(maps.Keys(produced)); !slices.Equal(got, documented) {
			t.Errorf("examples produce %q\nthe schema has    %q", got, documented)
		}
		if declared := declaredCodes(t); !slices.Equal(declared, documented) {
			t.Errorf("the package has %q\nthe schema has  %q", declared, documented)
		}
	})

	t.Run("every component", func(t *testing.T) {
		text, err := os.ReadFile("../docs/openapi.yaml")
		if err != nil {
			t.Fatal(err)
		}
		kinds := map[string][]string{
			"schemas": slices.Collect(maps.Keys(c.doc.Components.Schemas)), "parameters": slices.Collect(maps.Keys(c.doc.Components.Parameters)),
			"responses": slices.Collect(maps.Keys(c.doc.Components.Responses)), "headers": slices.Collect(maps.Keys(c.doc.Components.Headers)),
		}
		for kind, names := range kinds {
			for _, name := range names {
				if !bytes.Contains(text, []byte("'#/components/"+kind+"/"+name+"'")) {
					t.Errorf("%s/%s is not used", kind, name)
				}
			}
		}
		used := map[string]bool{}
		var use func(names []string)
		use = func(names []string) {
			for _, name := range names {
				used[name] = true
				use(c.Sets[name])
			}
		}
		for _, call := range c.Calls {
			use(call.Shared)
		}
		for _, name := range slices.Concat(slices.Collect(maps.Keys(c.Sets)), slices.Collect(maps.Keys(c.Shared))) {
			if !used[name] {
				t.Errorf("testdata/contract.yaml: %s is not used", name)
			}
		}
	})
}

// answersOf lists the statuses with which the server may answer any call that has the given
// properties.
func answersOf(what takes) []int {
	statuses := []int{200, 405, 431}
	for _, rule := range []struct {
		status    int
		any, none takes // the call must have a property in any, unless any is 0, and no property in none
	}{
		{400, 0, takesAnything},
		{408, 0, takesStream}, // the handler of the call reads the body at the client's pace
		{413, 0, takesAnything | takesStream},
		{429, 0, exempt},
		{500, takesRead | takesWrite | takesChange | takesStream, 0},
		{503, takesRead | takesWrite | takesChange | takesStream, 0},
		{504, takesWrite | takesChange | takesStream, 0},
	} {
		if (rule.any == 0 || what&rule.any != 0) && what&rule.none == 0 {
			statuses = append(statuses, rule.status)
		}
	}
	if what&takesKeyspace != 0 {
		statuses = append(statuses, 404)
		if what&takesWrite != 0 {
			statuses = append(statuses, 409, 410)
		}
	}
	return statuses
}

// servedEndpoints returns the properties of the server's endpoints by method and path. HEAD comes
// with GET.
func servedEndpoints(t *testing.T) map[string]takes {
	t.Helper()
	served := map[string]takes{}
	for path, r := range startFakeServer(t, nil).server.routes.resources {
		for method, e := range r.methods {
			if method != "HEAD" {
				served[method+" "+path] = e.takes
			}
		}
	}
	return served
}

// declaredCodes reads the codes from fault.go, so that the test cannot leave one out.
func declaredCodes(t *testing.T) []string {
	t.Helper()
	source, err := os.ReadFile("fault.go")
	if err != nil {
		t.Fatal(err)
	}
	var codes []string
	for line := range strings.Lines(string(source)) {
		var name, code string
		if n, _ := fmt.Sscanf(strings.TrimSpace(line), "%s = %q", &name, &code); n == 2 && strings.HasPrefix(name, "code") {
			codes = append(codes, code)
		}
	}
	for why := range column.Refusals {
		codes = append(codes, why.Reason().Code)
	}
	sort.Strings(codes)
	return codes
}

// TestOpenAPISuitsGenerators checks docs/openapi.yaml against the needs of Go code generators
// (oapi-codegen, ogen). No two components share a name, the parameters of a call have names that
// differ in Go too, and no schema has uniqueItems.
func TestOpenAPISuitsGenerators(t *testing.T) {
	doc := loadContract(t).doc
	kinds := map[string]string{}
	component := func(kind, name string) {
		if other := kinds[name]; other != "" {
			t.Errorf("%s is one of the %s and of the %s", name, other, kind)
		}
		kinds[name] = kind
	}
	for name := range doc.Components.Schemas {
		component("schemas", name)
	}
	for name := range doc.Components.Parameters {
		component("parameters", name)
	}
	for name := range doc.Components.Responses {
		component("responses", name)
	}
	for path, item := range doc.Paths.Map() {
		for method, call := range item.Operations() {
			names := map[string]bool{}
			for _, p := range slices.Concat(item.Parameters, call.Parameters) {
				name := strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(p.Value.Name))
				if names[name] && p.Value.In != "path" {
					t.Errorf("%s %s has two parameters %s", method, path, p.Value.Name)
				}
				names[name] = true
			}
		}
	}
	text, err := os.ReadFile("../docs/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "uniqueItems") {
		t.Error("uniqueItems")
	}
}

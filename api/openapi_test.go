package api

import (
	"bytes"
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
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/raftfsm/catalog"
)

// example is one documented answer and how to get it.
type example struct {
	name      string
	path      string // template
	method    string // of the operation
	item      *openapi3.PathItem
	operation *openapi3.Operation
	status    int
	value     any

	send   exampleRequest
	setup  string
	varies []string
}

// exampleRequest is the extension x-countd-request.
type exampleRequest struct {
	Method, Path string
	Headers      map[string]string
	Body         *string // as it is
	BodyBytes    int     // of spaces
	HeaderBytes  int     // of one more header
	Unfinished   bool    // the last byte never comes
}

func loadContract(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("../docs/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// Request examples of bad input break their schemas on purpose; replay
	// validates the others.
	if err := doc.Validate(context.Background(), openapi3.DisableExamplesValidation()); err != nil {
		t.Fatal(err)
	}
	return doc
}

// extension decodes an extension into v and reports whether it is there.
func extension(t *testing.T, extensions map[string]any, name string, v any) bool {
	t.Helper()
	value, ok := extensions[name]
	if !ok {
		return false
	}
	text, err := json.Marshal(value)
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		err = d.Decode(v)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return true
}

// examples lists every example of every answer of the contract.
func examples(t *testing.T, doc *openapi3.T) []example {
	t.Helper()
	var all []example
	for path, item := range doc.Paths.Map() {
		for method, operation := range item.Operations() {
			for status, response := range operation.Responses.Map() {
				for mediaType, content := range response.Value.Content {
					if len(content.Examples) == 0 {
						t.Errorf("%s %s %s %s has no example", method, path, status, mediaType)
					}
					for name, ref := range content.Examples {
						e := example{name: name, path: path, method: method, item: item, operation: operation, value: ref.Value.Value}
						if _, err := fmt.Sscan(status, &e.status); err != nil {
							t.Fatalf("%s %s: status %s", method, path, status)
						}
						extension(t, ref.Value.Extensions, "x-countd-request", &e.send)
						extension(t, ref.Value.Extensions, "x-countd-setup", &e.setup)
						extension(t, ref.Value.Extensions, "x-countd-varies", &e.varies)
						all = append(all, e)
					}
				}
			}
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].String() < all[j].String() })
	return all
}

func (e example) String() string {
	return fmt.Sprintf("%s %s %d %s", e.method, e.path, e.status, e.name)
}

// requestBody is the body that the example answers.
func (e example) requestBody(t *testing.T) string {
	t.Helper()
	switch {
	case e.send.Body != nil:
		return *e.send.Body
	case e.send.BodyBytes > 0:
		return strings.Repeat(" ", e.send.BodyBytes)
	case e.operation.RequestBody == nil:
		return ""
	}
	if stream := e.streamExamples(); stream != nil {
		return stream["usual"].Value.Value.(string)
	}
	documented := e.operation.RequestBody.Value.Content["application/json"].Examples
	ref := documented[e.name]
	if ref == nil {
		ref = documented["usual"]
	}
	if ref == nil {
		t.Fatalf("%v: no request body", e)
	}
	text, err := json.Marshal(ref.Value.Value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// streamExamples are the bodies of a call that takes a stream, or nil.
func (e example) streamExamples() openapi3.Examples {
	if e.operation.RequestBody == nil {
		return nil
	}
	if stream := e.operation.RequestBody.Value.Content[contentTypeStream]; stream != nil {
		return stream.Examples
	}
	return nil
}

// request is the request that the example answers.
func (e example) request(t *testing.T, server string) (*http.Request, map[string]string) {
	t.Helper()
	target, parameters := e.path, map[string]string{}
	for _, ref := range slices.Concat(e.item.Parameters, e.operation.Parameters) {
		if p := ref.Value; p.In == "path" {
			parameters[p.Name] = p.Example.(string)
			target = strings.ReplaceAll(target, "{"+p.Name+"}", p.Example.(string))
		}
	}
	if e.send.Path != "" {
		target = e.send.Path
	}
	method := e.method
	if e.send.Method != "" {
		method = e.send.Method
	}
	body := e.requestBody(t)
	r, err := http.NewRequest(method, server+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if e.streamExamples() != nil {
		r.Header.Set("Content-Type", contentTypeStream)
	}
	for name, value := range e.send.Headers {
		r.Header.Set(name, value)
		if name == "Host" { // which is no header to net/http
			r.Host = value
		}
	}
	if e.send.HeaderBytes > 0 {
		r.Header.Set("X-Filler", strings.Repeat("x", e.send.HeaderBytes))
	}
	return r, parameters
}

// replay sends the example's request and returns the answer.
func (e example) replay(t *testing.T, r *http.Request) reply {
	t.Helper()
	if e.send.Unfinished {
		return e.replayUnfinished(t, r)
	}
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

// replayTarget is a backend that the contract is replayed against.
type replayTarget interface {
	// renew returns servers before a backend as good as new. The hasty one waits
	// half a second for a request.
	renew(t *testing.T) (usual, hasty *live)
	// has reports whether the trouble of x-countd-setup can be had here.
	has(trouble string) bool
}

// unfinished is for requests that never end alone: no other is sure to be read in time.
func unfinished(c *Config) { c.ReadTimeout = 200 * time.Millisecond }

// fakeTarget is a fakeNode, which can have any trouble.
type fakeTarget struct{ usual, hasty *live }

func hasty(c *Config) { c.ReadTimeout = 500 * time.Millisecond }

func newFakeTarget(t *testing.T) *fakeTarget {
	return &fakeTarget{startLive(t, nil), startLive(t, unfinished)}
}

func (f *fakeTarget) renew(*testing.T) (usual, hasty *live) {
	f.usual.node.reset()
	f.hasty.node.reset()
	return f.usual, f.hasty
}

func (*fakeTarget) has(string) bool { return true }

// TestContractIsReplayed sends the request of every documented example to a live
// server and checks status, schema, headers and value of the answer: before a
// fake, and all that need no fault of the node before a real one.
func TestContractIsReplayed(t *testing.T) {
	doc := loadContract(t)
	all := examples(t, doc)
	for _, backend := range []struct {
		name   string
		target func(*testing.T) replayTarget
		least  int // examples; the contract had more
	}{
		{"fake", func(t *testing.T) replayTarget { return newFakeTarget(t) }, 200},
		{"real", func(t *testing.T) replayTarget { return newRealTarget(t) }, 150},
	} {
		t.Run(backend.name, func(t *testing.T) {
			target, replayed := backend.target(t), 0
			for _, e := range all {
				if target.has(e.setup) {
					replayed++
					// The servers outlive the example.
					usual, hasty := target.renew(t)
					t.Run(e.String(), func(t *testing.T) { e.mustHold(t, doc, usual, hasty) })
				}
			}
			usual, _ := target.renew(t)
			usual.wantGood()
			if replayed < backend.least {
				t.Errorf("%d examples were replayed", replayed)
			}
		})
	}
}

// mustHold replays the example.
func (e example) mustHold(t *testing.T, doc *openapi3.T, usual, hasty *live) {
	t.Helper()
	l := usual
	if e.send.Unfinished {
		l = hasty
	} else if e.setup == "enforce" {
		l = startEnforcing(t).live
	} else if e.setup == "audit" {
		l = startAuth(t, auth.Permissive, nil).live
	} else {
		l.seed(t, doc, e.operation.Tags)
	}
	end := l.setUp(e.setup)
	defer end()
	r, parameters := e.request(t, "http://"+l.server.Addr().String())
	got := e.replay(t, r)
	e.wantAnswer(t, got)
	e.wantSchema(t, doc, parameters, got)
}

// seed puts a new node into the state that examples begin with.
// What is not of counters is left out unless it is asked for.
func (l *live) seed(t *testing.T, doc *openapi3.T, tags []string) {
	t.Helper()
	var requests []exampleRequest
	if !extension(t, doc.Extensions, "x-countd-seed", &requests) {
		t.Fatal("no x-countd-seed")
	}
	for _, r := range requests {
		tag := "unread"
		if strings.HasPrefix(r.Path, "/v1/members/") {
			tag = "members"
		}
		if !slices.Contains(tags, tag) && !strings.HasPrefix(r.Path, "/v1/counters/posts/") {
			continue
		}
		if got := l.do(r.Method, r.Path, *r.Body); got.status != 200 {
			t.Fatalf("seed is answered %d %s", got.status, got.body)
		}
	}
}

// setUp brings trouble on until end is called.
func (l *live) setUp(trouble string) (end func()) {
	if trouble == "in_flight" {
		full := int64(l.server.cfg.InFlightMax)
		l.server.inFlight.Add(full)
		return func() { l.server.inFlight.Add(-full) }
	}
	if trouble == "songs" {
		l.do("POST", "/v1/keyspaces", `{"name":"songs","columns":["play","like"],"shards":1}`)
		return func() {}
	}
	if users := l.setUpUsers(trouble); users {
		return func() {}
	}
	l.node.setFault(trouble)
	return func() { l.node.setFault("") }
}

// setUpUsers makes the users that an example begins with, and reports whether it has any.
func (l *live) setUpUsers(trouble string) bool {
	switch trouble {
	case "enforce", "audit":
	case "web", "many_tokens":
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

// wantAnswer compares an answer with the example.
func (e example) wantAnswer(t *testing.T, got reply) {
	t.Helper()
	if got.status != e.status {
		t.Fatalf("answered %d %s, want %d", got.status, got.body, e.status)
	}
	if slices.Equal(e.varies, []string{"."}) {
		return
	}
	var answered, want any
	if err := json.Unmarshal([]byte(got.body), &answered); err != nil {
		t.Fatalf("answered %s: %v", got.body, err)
	}
	text, err := json.Marshal(e.value)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	for _, member := range e.varies {
		if !forget(answered, member) || !forget(want, member) {
			t.Errorf("%s varies but is not there", member)
		}
	}
	if !reflect.DeepEqual(answered, want) {
		t.Errorf("answered %s\nwant     %s", got.body, text)
	}
}

// forget removes a member, by its dotted path, and reports whether it was there.
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

// wantSchema checks the answer, and the request of a good one, against the
// contract.
func (e example) wantSchema(t *testing.T, doc *openapi3.T, parameters map[string]string, got reply) {
	t.Helper()
	r, _ := e.request(t, "http://example")
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
}

// TestContractIsWhole checks that the contract names what the server has, and
// that nothing documented is left without an example that is replayed.
func TestContractIsWhole(t *testing.T) {
	doc := loadContract(t)
	all := examples(t, doc)

	t.Run("every endpoint", func(t *testing.T) {
		var documented []string
		for path, item := range doc.Paths.Map() {
			for method := range item.Operations() {
				documented = append(documented, method+" "+path)
			}
		}
		sort.Strings(documented)
		if served := slices.Sorted(maps.Keys(servedEndpoints(t))); !slices.Equal(documented, served) {
			t.Errorf("documented %q\nserved     %q", documented, served)
		}
	})

	t.Run("every answer that the server gives for what a call takes", func(t *testing.T) {
		for name, takes := range servedEndpoints(t) {
			method, path, _ := strings.Cut(name, " ")
			responses := doc.Paths.Value(path).GetOperation(method).Responses
			for _, status := range answersOf(takes) {
				if responses.Status(status) == nil {
					t.Errorf("%s: %d is not documented", name, status)
				}
			}
		}
	})

	t.Run("every code", func(t *testing.T) {
		produced := map[string]bool{}
		for _, e := range all {
			if o, ok := e.value.(map[string]any); ok {
				if fault, ok := o["error"].(map[string]any); ok {
					produced[fault["code"].(string)] = true
				}
			}
		}
		var documented []string
		for _, code := range doc.Components.Schemas["Code"].Value.Enum {
			documented = append(documented, code.(string))
		}
		sort.Strings(documented)
		if got := slices.Sorted(maps.Keys(produced)); !slices.Equal(got, documented) {
			t.Errorf("examples produce %q\nthe schema has    %q", got, documented)
		}
		if declared := declaredCodes(t); !slices.Equal(declared, documented) {
			t.Errorf("the package has %q\nthe schema has  %q", declared, documented)
		}
	})

	t.Run("every request body", func(t *testing.T) {
		for path, item := range doc.Paths.Map() {
			for method, operation := range item.Operations() {
				if operation.RequestBody == nil || operation.RequestBody.Value.Content["application/json"] == nil {
					continue
				}
				for name := range operation.RequestBody.Value.Content["application/json"].Examples {
					if !slices.ContainsFunc(all, func(e example) bool {
						return e.path == path && e.method == method && e.name == name && e.send.Body == nil
					}) {
						t.Errorf("%s %s: the request %s has no answer", method, path, name)
					}
				}
			}
		}
	})

	t.Run("every component response", func(t *testing.T) {
		used := map[*openapi3.Response]bool{}
		for _, item := range doc.Paths.Map() {
			for _, operation := range item.Operations() {
				for _, response := range operation.Responses.Map() {
					used[response.Value] = true
				}
			}
		}
		for name, response := range doc.Components.Responses {
			if !used[response.Value] {
				t.Errorf("%s is not used", name)
			}
		}
	})
}

// answersOf lists the statuses that a call may be answered with, besides those
// that only it has.
func answersOf(what takes) []int {
	statuses := []int{200, 405, 431}
	for _, rule := range []struct {
		status    int
		any, none takes // of what the call takes
	}{
		{400, 0, takesAnything},
		{408, 0, takesStream}, // its call reads the body, at its pace
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

// servedEndpoints are the server's methods and paths, and what they take; HEAD
// goes with GET.
func servedEndpoints(t *testing.T) map[string]takes {
	t.Helper()
	routes := startLive(t, nil).server.routes
	resources := map[string]*resource{
		"/v1/counters/{keyspace}/{id}":              routes.row,
		"/v1/keyspaces/{keyspace}":                  routes.table,
		"/v1/keyspaces/{keyspace}/columns/{column}": routes.column,
		"/v1/keyspaces/{keyspace}/columns":          routes.columns,
		"/v1/keyspaces/{keyspace}/everywhere":       routes.spread,
		"/v1/outbox/{author}":                       routes.posts.outbox,
		"/v1/outbox/{author}/{id}":                  routes.posts.post,
		"/v1/timeline/{user}":                       routes.posts.timeline,
		"/v1/feed/{user}/groups":                    routes.posts.groups,
		"/v1/feed/{user}/groups/{name}":             routes.posts.group,

		"/v1/members/{keyspace}/{column}":             routes.members.change,
		"/v1/members/{keyspace}/{column}/check":       routes.members.check,
		"/v1/members/{keyspace}/{column}/{id}":        routes.members.list,
		"/v1/members/{keyspace}/{column}/of/{member}": routes.members.of,
	}
	maps.Copy(resources, routes.fixed)
	maps.Copy(resources, routes.unread.all())
	for path, r := range map[string]*resource{"": routes.users.all, "/{name}": routes.users.one,
		"/{name}/tokens": routes.users.tokens, "/{name}/tokens/{id}": routes.users.token} {
		resources["/v1/users"+path] = r
	}
	maps.Copy(resources, routes.admin.fixed)
	resources["/v1/sources"] = routes.sources.list
	resources["/v1/sources/{source}"] = routes.sources.one
	for verb, r := range routes.sources.verbs {
		resources["/v1/sources/{source}/"+verb] = r
	}
	for verb, r := range routes.admin.nodes {
		resources["/v1/admin/nodes/{node}/"+verb] = r
	}
	for verb, r := range routes.admin.groups {
		resources["/v1/admin/groups/{group}/"+verb] = r
	}
	for action, r := range routes.actions {
		resources["/v1/counters/{keyspace}/"+action] = r
	}
	served := map[string]takes{}
	for path, r := range resources {
		for method, e := range r.methods {
			if method != "HEAD" {
				served[method+" "+path] = e.takes
			}
		}
	}
	return served
}

// declaredCodes reads the codes out of fault.go, so that none can be left out.
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
	sort.Strings(codes)
	return codes
}

// TestContractSuitsGenerators holds docs/openapi.yaml to what generators of Go code need
// (oapi-codegen, ogen): a name is of one component, the parameters of a call have names that
// differ in Go too, and no schema has uniqueItems.
func TestContractSuitsGenerators(t *testing.T) {
	doc := loadContract(t)
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

package api

import (
	"strings"
	"testing"
)

// Each endpoint that changes the cluster or a keyspace is logged with its caller.
func TestEveryAdminChangeIsAudited(t *testing.T) {
	r := newRoutes(startFakeServer(t, nil).server.metrics)
	for path, to := range r.resources {
		if !strings.HasPrefix(path, "/v1/keyspaces") && !strings.HasPrefix(path, "/v1/admin/") {
			continue
		}
		for method, e := range to.methods {
			if method != "GET" && method != "HEAD" && e.takes&audited == 0 {
				t.Errorf("%s %s is not audited", method, path)
			}
		}
	}
}

// A line names the caller, the request and the answer. The rate of lines for refused calls is
// limited, because anybody can make many such calls.
func TestAdminActionsAreLogged(t *testing.T) {
	l := startFakeServer(t, nil)
	l.do("POST", "/v1/keyspaces", `{"name":"shop","columns":["buy"]}`)
	l.do("POST", "/v1/keyspaces/shop/columns", `{"columns":["look"]}`)
	l.do("POST", "/v1/admin/nodes/n2/drain", `{}`)
	l.do("POST", "/v1/admin/nodes/n2/drain", `{}`)
	l.do("POST", "/v1/admin/groups/1/restore?force=true", fakeSnapshot, "Content-Type", contentTypeStream)
	for range 100 {
		l.do("POST", "/v1/admin/nodes/n9/drain", `{}`)
	}
	l.do("GET", "/v1/admin/nodes", "")
	l.do("POST", "/v1/counters/posts/incr", `{"ops":[{"id":"1","add":{"like":1}}]}`)
	var lines []string
	for line := range strings.Lines(l.log.String()) {
		if strings.Contains(line, "admin action") {
			if !strings.Contains(line, "caller=127.0.0.1:") {
				t.Errorf("no caller in %s", line)
			}
			lines = append(lines, line)
		}
	}
	for i, want := range [][]string{
		{"level=INFO", "action=keyspaces_create", "path=/v1/keyspaces", "status=200", `body="{\"name\":\"shop\",\"columns\":[\"buy\"]}"`},
		{"action=keyspaces_columns", "path=/v1/keyspaces/shop/columns", `look`},
		{"action=admin_node_drain", "path=/v1/admin/nodes/n2/drain", "status=200"},
		{"action=admin_node_drain", "path=/v1/admin/nodes/n2/drain", "status=200"},
		{"action=admin_group_restore", "path=/v1/admin/groups/1/restore", "query=\"force=true\""},
		{`msg="admin action failed: admin_node_drain"`, "path=/v1/admin/nodes/n9/drain", "status=404", `err="no such node: \"n9\""`},
	} {
		if i >= len(lines) {
			t.Fatalf("no line of %q in\n%s", want, l.log.String())
		}
		for _, text := range want {
			if !strings.Contains(lines[i], text) {
				t.Errorf("no %s in %s", text, lines[i])
			}
		}
	}
	if len(lines) != 6 {
		t.Errorf("%d lines, want 6:\n%s", len(lines), strings.Join(lines, ""))
	}
}

func TestAuditedTextIsBounded(t *testing.T) {
	l := startFakeServer(t, nil)
	l.do("POST", "/v1/admin/nodes/"+strings.Repeat("n", 3000)+"/drain", `{"`+strings.Repeat("x", 100_000)+`":1}`)
	if n := len(l.log.String()); n > 2000 {
		t.Errorf("%d bytes are logged", n)
	}
}

// TestSecretsAreNotLogged: no line contains the body of a source, which may have a secret by
// mistake.
func TestSecretsAreNotLogged(t *testing.T) {
	l := startFakeServer(t, nil)
	l.do("POST", "/v1/admin/sources", `{"name":"likes","config":{"password":"AQEBAQ"}}`)
	if !l.log.Has("admin_source_restore") || l.log.Has("AQEBAQ") {
		t.Error(l.log.String())
	}
}

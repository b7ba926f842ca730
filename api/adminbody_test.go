package api

import (
	"testing"
)

// TestAdminCallsNeedNoBody checks that a client may leave out the body of a call without required
// members. If the call has required members, a missing body gets an error that names a missing
// member.
func TestAdminCallsNeedNoBody(t *testing.T) {
	l := startFakeServer(t, nil)
	for _, path := range []string{"nodes/n2/drain", "nodes/n2/undrain", "nodes/n2/remove", "cold/migrate", "cold/stop"} {
		without, with := l.do("POST", "/v1/admin/"+path, ""), l.do("POST", "/v1/admin/"+path, "{}")
		if without.status != 200 || without.body != with.body {
			t.Errorf("%s is answered %d %s, with {} %s", path, without.status, without.body, with.body)
		}
	}
	for path, field := range map[string]string{"groups/1/transfer": "to", "groups/1/move": "from", "version": "body"} {
		wantFault(t, l.do("POST", "/v1/admin/"+path, ""), 400, "invalid_argument", field)
	}
	// A page of another site can make a browser send such a request without a preflight request.
	wantFault(t, l.do("POST", "/v1/admin/nodes/n2/drain", "", "Origin", "https://example.com"), 400, "invalid_argument", "Content-Type")
}

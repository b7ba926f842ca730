package api

import (
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/client/column"
)

// Clients take each 409 whose code is no conflict as a refusal by a column, and so as the final
// outcome of the write.
func TestConflictsAndRefusals(t *testing.T) {
	conflicts := map[string]bool{codeConflict: true, codeKeyspaceExists: true, codeRefused: true}
	for _, b := range backendFaults {
		if b.status == fasthttp.StatusConflict && conflicts[b.code] == column.IsRefusal(b.code) {
			t.Errorf("%v has the status 409 and the code %s", b.err, b.code)
		}
	}
	for r := range column.Refusals {
		if code := r.Reason().Code; conflicts[code] || !column.IsRefusal(code) {
			t.Errorf("refusal %d has the code %s", r, code)
		}
	}
}

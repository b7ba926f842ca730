package api

import (
	"strings"
	"testing"

	"github.com/countd/countd/shard/tiering"
)

// If a tiering order fails because nodes do not answer, the client gets a 503 that blames no field
// of its request.
func TestSilentNodeIsNoFaultOfTheRequest(t *testing.T) {
	f, known := faultOf(&tiering.ColdSilentError{Nodes: []string{"n2", "n3"}})
	if !known || f.status != 503 || f.code != codeNoQuorum || f.field != "" || !strings.Contains(f.message, "n2, n3") {
		t.Errorf("%+v, %v", f, known)
	}
}

package api

import (
	"strings"
	"testing"

	"github.com/countd/countd/shard/tiering"
)

// An order that fails because a node is silent is no fault of the request.
func TestSilentNodeIsNoFaultOfTheRequest(t *testing.T) {
	f, known := faultOf(&tiering.ColdSilentError{Nodes: []string{"n2", "n3"}})
	if !known || f.status != 503 || f.code != codeNoQuorum || f.field != "" || !strings.Contains(f.message, "n2, n3") {
		t.Errorf("%+v, %v", f, known)
	}
}

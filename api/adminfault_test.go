package api

import (
	"strings"
	"testing"

	"github.com/countd/countd/shard/tiering"
)

// The request has no fault if its order fails because a node is silent.
func TestSilentNodeIsNoFaultOfTheRequest(t *testing.T) {
	f, known := faultOf(&tiering.ColdSilentError{Nodes: []string{"n2", "n3"}})
	if !known || f.status != 503 || f.code != codeNoQuorum || f.field != "" || !strings.Contains(f.message, "n2, n3") {
		t.Errorf("%+v, %v", f, known)
	}
}

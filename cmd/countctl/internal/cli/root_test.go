package cli

import (
	"fmt"
	"testing"

	"github.com/countd/countd/client"
)

// If the server refuses an argument, that is a usage error. If the server refuses a line of a file,
// that is no usage error.
func TestServerFindsWrongArguments(t *testing.T) {
	for field, want := range map[string]bool{
		"limit": true, "columns[1]": true, "positions.0": true, "key": true, "group": true, "grants[0].role": true, "limits.ops_per_second": true,
		"ops[0].id": false, "map.columns": false, "body": false, "": false,
	} {
		err := fmt.Errorf("cannot do it: %w", &client.Error{Status: 400, Code: "invalid_argument", Field: field})
		if got := isUsage(err); got != want {
			t.Errorf("field %q is of the command line: %v", field, got)
		}
	}
	if isUsage(&client.Error{Status: 409, Code: "refused", Field: "positions.0"}) {
		t.Error("a refusal is an error of usage")
	}
}

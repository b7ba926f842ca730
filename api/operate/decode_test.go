package operate

import (
	"strings"
	"testing"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/column"
)

// Decode refuses unknown, repeated, null and missing members. The error has the path of the member.
func TestDecode(t *testing.T) {
	type inner struct {
		Role  string   `json:"role"`
		Names []string `json:"names"`
	}
	type body struct {
		Name    string              `json:"name"`
		List    []inner             `json:"list"`
		Of      *inner              `json:"of"`
		On      *bool               `json:"on"`
		N       int64               `json:"n"`
		ID      client.ID           `json:"id"`
		Columns []column.Column     `json:"columns"`
		At      map[uint32]position `json:"at"`
	}
	for text, want := range map[string]string{
		`{"name":"a"}`: "", `{}`: "name: missing", ``: "body: not valid JSON at byte 0", `[]`: "body: not an object", `null`: "body: not an object", `{"name":"a"}x`: "body: not valid JSON at byte 12", `{"name":1}`: "name: not a string", `{"name":null}`: "name: not a string",
		`{"name":"a","name":"b"}`: "name: given twice", `{"name":"a","x":1}`: "x: no such field; there are name, list, of, on, n, id, columns, at", `{"Name":"a"}`: "Name: no such",
		`{"name":"a","list":[{"role":"x"},{"rule":1}]}`: "list[1].rule: no such field; there are role, names", `{"name":"a","list":{}}`: "list: not an array", `{"name":"a","list":[{"names":[1]}]}`: "list[0].names[0]: not a string",
		`{"name":"a","of":{"role":"a","role":"b"}}`: "of.role: given twice", `{"name":"a","of":null}`: "of: not an object", `{"name":"a","on":1}`: "on: neither true nor false",
		`{"name":"a","n":1.5}`: "n: not a signed 64-bit integer", `{"name":"a","n":9223372036854775808}`: "n: not a", `{"name":"a","id":1.5}`: "id: not a", `{"name":"a","id":"007"}`: "", `{"name":"a","id":7}`: "", `{"name":"a","id":"7"}`: "",
		`{"name":"a","columns":["a",{"name":"b","floor":null},{"name":"c","floor":-3}]}`: "", `{"name":"a","columns":["a",7]}`: "columns[1]: not a string", `{"name":"a","columns":[{"name":"a","floor":"0"}]}`: "columns[0].floor: not a signed", `{"name":"a","columns":[{"floor":0}]}`: "columns[0].name: missing",
		`{"name":"a","columns":[{"name":"a","floor":0,"floor":0}]}`: "columns[0].floor: given twice", `{"name":"a","columns":[{"name":"a","x":0}]}`: "columns[0].x: no such",
		`{"name":"a","at":{"0":7,"1":"1-2"}}`: "", `{"name":"a","at":{"x":7}}`: "at.x: not the number of a partition", `{"name":"a","at":{"1":true}}`: "at.1: not a position", `{"name":"a","at":{"1":1,"1":2}}`: "at.1: given twice",
	} {
		var b body
		err := Decode([]byte(text), &b, "name")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

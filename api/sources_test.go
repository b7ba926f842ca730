package api

import (
	"strings"
	"testing"
)

// The error names the fault of a bad seek. The source's positions stay the same.
func TestSeekBodies(t *testing.T) {
	l := startFakeServer(t, nil)
	for body, field := range map[string]string{
		``:                                     "positions",
		`{}`:                                   "positions",
		`{"positions":{}}`:                     "positions",
		`{"positions":[1]}`:                    "positions",
		`{"positions":{"-1":1}}`:               "positions.-1",
		`{"positions":{"4294967296":1}}`:       "positions.4294967296",
		`{"positions":{"0":1,"0":2}}`:          "positions.0",
		`{"positions":{"0":1,"00":2}}`:         "positions.00",
		`{"positions":{"0":null}}`:             "positions.0",
		`{"positions":{"0":""}}`:               "positions.0",
		`{"positions":{"0":{}}}`:               "positions.0",
		`{"positions":{"0":"x"}}`:              "positions.0",
		`{"positions":{"0":1},"more":1}`:       "more",
		`{"positions":{"0":1},"positions":{}}`: "positions",
		`{"positions":{"0":1}`:                 "body",
	} {
		got := l.do("POST", "/v1/sources/likes/seek", body)
		if got.status != 400 || !strings.Contains(got.body, `"field":"`+field+`"`) {
			t.Errorf("%s is answered %d %s", body, got.status, got.body)
		}
	}
	for path, status := range map[string]int{
		"/v1/sources/likes": 200, "/v1/sources": 200, "/v1/sources/": 404, "/v1/sourceslikes": 404, "/v1/sources/likes/": 404, "/v1/sources/a/b/c": 404,
	} {
		if got := l.do("GET", path, ""); got.status != status {
			t.Errorf("%s is answered %d %s", path, got.status, got.body)
		}
	}
	if got := l.do("POST", "/v1/sources/likes/seek", `{"positions":{"0":1,"7":"5-6"}}`); got.status != 200 {
		t.Errorf("a good seek is answered %d %s", got.status, got.body)
	}
}

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/raftfsm/catalog"
)

// wired returns a CallAsker whose calls go to handlers, by name. Each call appends its target to
// sent, as cluster@address.
func wired(handlers map[string]func(context.Context, []byte) ([]byte, error), sent *[]string) CallAsker {
	return CallAsker{Call: func(ctx context.Context, clusterID, addr, name string, request []byte) ([]byte, error) {
		*sent = append(*sent, clusterID+"@"+addr)
		return handlers[name](ctx, request)
	}}
}

func TestCallsComeThroughWhole(t *testing.T) {
	lost := errors.New("lost")
	var proposal Proposal
	var request JoinRequest
	var sent []string
	asker := wired(map[string]func(context.Context, []byte) ([]byte, error){
		FormCall: CallHandler(func(_ context.Context, p Proposal) (Agreement, error) {
			proposal = p
			return Agreement{Agreed: true, Why: "so"}, nil
		}),
		JoinCall: CallHandler(func(_ context.Context, r JoinRequest) (JoinAnswer, error) {
			if request = r; r.Node.Key == "" {
				return JoinAnswer{}, lost
			}
			return JoinAnswer{Admitted: true}, nil
		}),
	}, &sent)
	p := Proposal{To: "a", Set: []string{"a", "b"}}
	if answer, err := asker.Form(t.Context(), "a", p); err != nil || answer != (Agreement{Agreed: true, Why: "so"}) || !reflect.DeepEqual(proposal, p) {
		t.Errorf("%+v, %v of %+v", answer, err, proposal)
	}
	r := JoinRequest{ClusterID: clusterX, Node: catalog.Node{Key: "k", Name: "n", Zone: "z", HTTPAddr: "h", ClusterAddr: "c", GossipAddr: "g", Version: "v", VersionMax: 2, State: "active"}}
	if answer, err := asker.Join(t.Context(), "a", r); err != nil || !answer.Admitted || request != r {
		t.Errorf("%+v, %v of %+v", answer, err, request)
	}
	if _, err := asker.Join(t.Context(), "a", JoinRequest{}); !errors.Is(err, lost) {
		t.Errorf("error %v, want the handler's", err)
	}
	if want := []string{"@a", clusterX + "@a", "@a"}; !slices.Equal(sent, want) {
		t.Errorf("sent to %q, want %q", sent, want)
	}
}

// TestWidestCallFits: a proposal to the largest set, with the longest keys, fits into a call.
func TestWidestCallFits(t *testing.T) {
	p := Proposal{To: widestMember().Key}
	for range ExpectMax {
		p.Set = append(p.Set, widestMember().Key)
	}
	raw, err := json.Marshal(p)
	if err != nil || len(raw) > formBytesMax/2 {
		t.Errorf("%d bytes, %v", len(raw), err)
	}
	id := identityOf("a")
	id.Promised = strings.Join(p.Set, ",")
	if raw, err = json.MarshalIndent(id, "", "  "); err != nil || len(raw) > identityBytesMax {
		t.Errorf("%d bytes of identity, %v", len(raw), err)
	}
}

func TestBadCalls(t *testing.T) {
	called := false
	handler := CallHandler(func(context.Context, Proposal) (Agreement, error) {
		called = true
		return Agreement{}, nil
	})
	for name, raw := range map[string]string{
		"nothing": "", "cut short": `{"to":"a"`, "unknown field": `{"to":"a","from":"b"}`, "two": "{}{}", "a list": "[]",
		"too long": `{"to":"` + strings.Repeat("a", formBytesMax) + `"}`,
	} {
		if _, err := handler(t.Context(), []byte(raw)); !errors.Is(err, errBadCall) || called {
			t.Errorf("%s: error %v, called %v", name, err, called)
		}
		asker := CallAsker{Call: func(context.Context, string, string, string, []byte) ([]byte, error) { return []byte(raw), nil }}
		if answer, err := asker.Join(t.Context(), "a", JoinRequest{}); !errors.Is(err, errBadCall) || answer.Admitted {
			t.Errorf("%s as an answer: %+v, %v", name, answer, err)
		}
	}
}

func FuzzParseCall(f *testing.F) {
	f.Add([]byte(`{"to":"a","set":["a","b"]}`))
	f.Add([]byte(`{"cluster_id":"x","node":{"key":"k"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if p, err := parseCall[Proposal](raw); err == nil {
			fuzzAgain(t, p)
		} else if !errors.Is(err, errBadCall) {
			t.Fatalf("error %v, want errBadCall", err)
		}
		if r, err := parseCall[JoinRequest](raw); err == nil {
			fuzzAgain(t, r)
		}
	})
}

// fuzzAgain checks that a parsed value survives encoding and parsing.
func fuzzAgain[T any](t *testing.T, v T) {
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	again, err := parseCall[T](out)
	if err != nil && len(out) <= formBytesMax { // escapes may make it longer than formBytesMax
		t.Fatalf("%s came back with %v", out, err)
	}
	if twice, _ := json.Marshal(again); err == nil && !bytes.Equal(twice, out) {
		t.Fatalf("%s came back as %s", out, twice)
	}
}

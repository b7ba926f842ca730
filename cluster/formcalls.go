package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// These are the names of calls between nodes that are not in the same cluster. Request and answer
// are one JSON object each.
const (
	FormCall = "form" // Proposal → Agreement
	JoinCall = "join" // JoinRequest → JoinAnswer
)

// formBytesMax bounds the JSON object of a FormCall or JoinCall. The longest valid object, with
// ExpectMax keys, has less than 3 KiB.
const formBytesMax = 16 << 10

// errBadCall is returned for a request or an answer that cannot be decoded.
var errBadCall = errors.New("not a call of this version")

// CallAsker implements Asker by calls between nodes.
type CallAsker struct {
	// Call sends request to the node at addr and returns the answer. clusterID is the cluster of
	// that node; "" if it has none.
	Call func(ctx context.Context, clusterID, addr, name string, request []byte) ([]byte, error)
}

var _ Asker = CallAsker{}

// Form implements Asker.
func (c CallAsker) Form(ctx context.Context, addr string, p Proposal) (Agreement, error) {
	return callFor[Agreement](ctx, c, "", addr, FormCall, p)
}

// Join implements Asker.
func (c CallAsker) Join(ctx context.Context, addr string, r JoinRequest) (JoinAnswer, error) {
	return callFor[JoinAnswer](ctx, c, r.ClusterID, addr, JoinCall, r)
}

func callFor[A, Q any](ctx context.Context, c CallAsker, clusterID, addr, name string, question Q) (A, error) {
	var answer A
	request, err := json.Marshal(question)
	if err != nil {
		return answer, fmt.Errorf("cannot encode call %q: %w", name, err)
	}
	raw, err := c.Call(ctx, clusterID, addr, name, request)
	if err != nil {
		return answer, fmt.Errorf("cannot call %q of the node at %s: %w", name, addr, err)
	}
	return parseCall[A](raw)
}

// parseCall decodes a request or an answer. Every error is errBadCall.
func parseCall[T any](raw []byte) (T, error) {
	var into T
	if err := strictJSON(raw, formBytesMax, &into); err != nil {
		var none T
		return none, fmt.Errorf("%w: %w", errBadCall, err)
	}
	return into, nil
}

// CallHandler turns HandleForm or HandleJoin into a handler of calls. The handler keeps no
// reference to the request.
func CallHandler[Q, A any](handle func(context.Context, Q) (A, error)) func(context.Context, []byte) ([]byte, error) {
	return func(ctx context.Context, request []byte) ([]byte, error) {
		question, err := parseCall[Q](request)
		if err != nil {
			return nil, err
		}
		answer, err := handle(ctx, question)
		if err != nil {
			return nil, err
		}
		return json.Marshal(answer)
	}
}

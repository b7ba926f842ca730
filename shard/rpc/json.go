package rpc

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/countd/countd/internal/wire"
)

// None is an empty request or answer.
type None struct{}

// CallJSON is Calls.Call for a method whose request and answer are JSON.
func CallJSON[A any](ctx context.Context, calls *Calls, node, method string, request any) (answer A, err error) {
	body, err := json.Marshal(request)
	if err != nil {
		return answer, fmt.Errorf("%w: cannot encode the request: %w", ErrNotSent, err)
	}
	raw, err := calls.Call(ctx, node, method, body)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return answer, fmt.Errorf("%w: %w", wire.ErrBadMessage, err)
	}
	return answer, nil
}

// JSON returns a handler whose request and answer are JSON. Use it only for rare calls, because
// JSON takes longer to encode and decode than the binary messages of other handlers.
func JSON[Q, A any](handle func(context.Context, Q) (A, error)) Handler {
	return func(ctx context.Context, body []byte) ([]byte, error) {
		var request Q
		if err := json.Unmarshal(body, &request); err != nil {
			return nil, fmt.Errorf("%w: %w", wire.ErrBadMessage, err)
		}
		answer, err := handle(ctx, request)
		if err != nil {
			return nil, err
		}
		return json.Marshal(answer)
	}
}

// AskAllJSON is AskAll for a method whose request and answer are JSON. For this node, self, it
// calls handle directly.
func AskAllJSON[Q, A any](ctx context.Context, calls *Calls, self string, nodes iter.Seq[string], method string, request Q, handle func(context.Context, Q) (A, error)) map[string]A {
	return AskAll(ctx, nodes, func(ctx context.Context, node string) (A, error) {
		if node == self {
			return handle(ctx, request)
		}
		return CallJSON[A](ctx, calls, node, method, request)
	})
}

package api

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/gate"
)

// keptAnswerBytesMax bounds the buffer for answers that each connection keeps. An answer with 100
// rows of four counts fits. Larger answers use memory that the garbage collector frees.
const keptAnswerBytesMax = 16 << 10

// answer sends the JSON that the function body appends.
func answer(ctx *fasthttp.RequestCtx, body func(dst []byte) []byte) {
	answerLong(ctx, 0, body)
}

// answerLong does the same as answer, but expects a body of about n bytes.
func answerLong(ctx *fasthttp.RequestCtx, n int, body func(dst []byte) []byte) {
	ctx.Response.Header.SetContentType(gate.ContentTypeJSON)
	text := body(slices.Grow(ctx.Response.SwapBody(nil)[:0], n))
	if cap(text) > keptAnswerBytesMax {
		ctx.Response.SetBodyRaw(text)
		return
	}
	ctx.Response.SwapBody(text)
}

func answerFault(ctx *fasthttp.RequestCtx, f *fault) {
	ctx.Response.Reset()
	ctx.SetStatusCode(f.status)
	if f.retryable() {
		ctx.Response.Header.Set(fasthttp.HeaderRetryAfter, strconv.Itoa(max(f.retryAfter, retryAfter)))
	}
	if f.status == fasthttp.StatusUnauthorized {
		ctx.Response.Header.Set(fasthttp.HeaderWWWAuthenticate, challenge)
	}
	if f.allow != "" {
		ctx.Response.Header.Set(fasthttp.HeaderAllow, f.allow)
	}
	if f.closes {
		closeAfterAnswer(ctx)
	}
	answer(ctx, f.appendJSON)
}

// closeAfterAnswer makes the connection close after the answer. If the client is still sending,
// the close waits briefly, so that the client can read the answer.
func closeAfterAnswer(ctx *fasthttp.RequestCtx) {
	ctx.SetConnectionClose()
	if c, ok := ctx.Conn().(*gate.Conn); ok {
		c.Lingers = true
	}
}

const (
	headerAuthorization = "Authorization"
	// challenge is the header WWW-Authenticate of a 401.
	challenge = `Bearer realm="countd"`
)

// answerJSON sends v as JSON. It encodes by reflection, so only rare calls use it.
func answerJSON(ctx *fasthttp.RequestCtx, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("cannot encode answer: %w", err)
	}
	answer(ctx, func(dst []byte) []byte { return append(dst, text...) })
	return nil
}

// The headers and parameters of the contract.
const (
	headerConsistency  = "Countd-Consistency"
	headerMaxStaleness = "Countd-Max-Staleness"
	headerToken        = "Countd-Token"
	consistency        = "consistency"   // query, or header
	maxStaleness       = "max_staleness" // query, or header
	headerKey          = "Idempotency-Key"
	headerProducer     = "Countd-Producer"
	headerSequence     = "Countd-Seq"
)

const (
	serverName = "countd"
	// maxStalenessMax bounds max_staleness. A node that is further behind counts as failed.
	maxStalenessMax = time.Hour
)

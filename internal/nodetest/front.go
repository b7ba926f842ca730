package nodetest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"time"
)

// Fault describes the answer that the front sends instead of the node's answer.
type Fault struct {
	Status     int
	Code       string
	Message    string
	Field      string
	Body       string // the whole body of the answer, instead of an error; "" for an error
	RetryAfter string // value of the header Retry-After; "" for no header
	After      bool   // the node still applies the request
	// Shards restricts After to these shards of posts; nil for all. The fault then lists the ids of
	// the ops that were applied. If Status is 504, it also lists the other ids, as unknown.
	Shards []int
	Late   time.Duration // with After: how long after the answer the node receives the request; 0 means before the answer
	Hang   bool          // send no answer, but cut the connection
}

// SetFail replaces Fail. Requests in flight may still get the previous function.
func (s *Server) SetFail(fail func(r *http.Request, body []byte) *Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.fail = fail
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	s.mu.Lock()
	fail, pass := s.Fail, http.Handler(s.mu.pass)
	if s.mu.fail != nil {
		fail = s.mu.fail
	}
	s.mu.Unlock()
	var fault *Fault
	if fail != nil {
		fault = fail(r, body)
	}
	if fault == nil {
		r.Body = io.NopCloser(bytes.NewReader(body))
		pass.ServeHTTP(w, r)
		return
	}
	refusal := map[string]any{"error": map[string]string{
		"code": fault.Code, "message": cmp.Or(fault.Message, "refused by the test"), "field": fault.Field,
	}}
	if fault.After {
		if fault.Shards != nil {
			body, refusal["applied"], refusal["unknown"] = parted(body, fault)
		}
		s.apply(pass, r, body, fault.Late)
	}
	if fault.Hang {
		panic(http.ErrAbortHandler)
	}
	if fault.RetryAfter != "" {
		w.Header().Set("Retry-After", fault.RetryAfter)
	}
	w.WriteHeader(fault.Status)
	if fault.Body != "" {
		_, _ = io.WriteString(w, fault.Body) // ignore the error: the client may have disconnected
		return
	}
	_ = json.NewEncoder(w).Encode(refusal) // ignore the error: the client may have disconnected
}

// apply sends a request to the node, after the time late, and drops the answer.
func (s *Server) apply(pass http.Handler, r *http.Request, body []byte, late time.Duration) {
	if body == nil {
		return
	}
	again := r.Clone(context.WithoutCancel(r.Context()))
	again.Body, again.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	again.Header.Set("Content-Length", strconv.Itoa(len(body)))
	if late == 0 {
		pass.ServeHTTP(httptest.NewRecorder(), again)
		return
	}
	s.late.Go(func() { // ends after the request; the test's cleanup waits for it
		time.Sleep(late)
		pass.ServeHTTP(httptest.NewRecorder(), again)
	})
}

// parted returns the part of a write whose ops belong to fault.Shards; nil for none. applied is the
// ids of these ops. unknown is the other ids if fault.Status is 504.
func parted(body []byte, fault *Fault) (part []byte, applied, unknown []string) {
	const shards = 4 // number of shards of posts
	var request map[string]json.RawMessage
	var all, ops []json.RawMessage
	if json.Unmarshal(body, &request) != nil || json.Unmarshal(request["ops"], &all) != nil {
		return body, nil, nil
	}
	for _, op := range all {
		var of struct {
			ID uint64 `json:"id,string"`
		}
		_ = json.Unmarshal(op, &of) // clients send valid ids
		if id := strconv.FormatUint(of.ID, 10); slices.Contains(fault.Shards, int(of.ID%shards)) {
			ops, applied = append(ops, op), append(applied, id)
		} else if fault.Status == http.StatusGatewayTimeout {
			unknown = append(unknown, id)
		}
	}
	if len(ops) == 0 {
		return nil, nil, unknown
	}
	request["ops"], _ = json.Marshal(ops) // encoding never fails, because the JSON was just parsed
	part, _ = json.Marshal(request)
	return part, applied, unknown
}

package proctest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"

	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/must"
)

// Call sends one request with body as JSON, or without a body if body is nil. It decodes the JSON
// answer into answer if answer is not nil. It returns the status. If no complete answer arrives, it
// returns an error, and the request may have been applied.
func (n *Node) Call(method, path string, body, answer any) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), must.BecomeMax)
	defer cancel()
	return n.Send(ctx, method, path, nil, body, answer)
}

// Send is like Call, but with headers, and the end of ctx aborts the request.
func (n *Node) Send(ctx context.Context, method, path string, header http.Header, body, answer any) (int, error) {
	status, raw, err := n.ask(ctx, method, path, header, body)
	if err == nil && answer != nil {
		if err = json.Unmarshal(raw, answer); err != nil {
			err = fmt.Errorf("cannot decode the answer with status %d, %q: %w", status, raw, err)
		}
	}
	if err != nil {
		return 0, err
	}
	return status, nil
}

// ask sends a request at most once, because tests count their repeats. It returns the status and
// body of the answer.
func (n *Node) ask(ctx context.Context, method, path string, header http.Header, body any) (int, []byte, error) {
	var payload io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return 0, nil, fmt.Errorf("cannot encode body: %w", err)
		}
		payload = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, n.URL+path, payload)
	if err != nil {
		return 0, nil, fmt.Errorf("cannot make request: %w", err)
	}
	if n.Token != "" {
		req.Header.Set("Authorization", "Bearer "+n.Token)
	}
	maps.Copy(req.Header, header)
	req.GetBody = nil // otherwise net/http would repeat a request with an idempotency key
	resp, err := n.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return resp.StatusCode, raw, err
}

// MustCall is like Call, but the answer must be 200.
func (n *Node) MustCall(method, path string, body, answer any) {
	n.t.Helper()
	var raw json.RawMessage
	status, err := n.Call(method, path, body, &raw)
	if err != nil {
		n.t.Fatalf("%s %s: %v", method, path, err)
	}
	if status != http.StatusOK {
		n.t.Fatalf("%s %s: status %d: %s", method, path, status, raw)
	}
	if answer != nil {
		if err := json.Unmarshal(raw, answer); err != nil {
			n.t.Fatalf("%s %s: %v in %s", method, path, err, raw)
		}
	}
}

// Text returns the body of the answer to GET path, such as /metrics. The status must be 200.
func (n *Node) Text(path string) string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), must.BecomeMax)
	defer cancel()
	status, text, err := n.ask(ctx, http.MethodGet, path, nil, nil)
	if err != nil || status != http.StatusOK {
		n.t.Fatalf("GET %s: status %d: %v", path, status, err)
	}
	return string(text)
}

// Row is one row in an answer of the API.
type Row struct {
	ID     string           `json:"id"`
	Counts map[string]int64 `json:"counts"`
}

// ClusterStatus is a node's answer to GET /v1/cluster.
type ClusterStatus struct{ admin.Cluster }

// Cluster requests the cluster's status from the node.
func (n *Node) Cluster() ClusterStatus {
	n.t.Helper()
	var c ClusterStatus
	n.MustCall(http.MethodGet, "/v1/cluster", nil, &c)
	return c
}

// Digests returns the digest of each shard of a keyspace, by shard.
func (c ClusterStatus) Digests(keyspace string) map[int]string {
	digests := map[int]string{}
	for _, g := range c.Groups {
		if g.Keyspace == keyspace {
			digests[g.Shard] = g.Digest
		}
	}
	return digests
}

// Rows returns the number of rows of a keyspace.
func (c ClusterStatus) Rows(keyspace string) uint64 {
	var rows uint64
	for _, g := range c.Groups {
		if g.Keyspace == keyspace {
			rows += g.Rows
		}
	}
	return rows
}

// Rows returns the rows of ids by linearizable reads.
func (n *Node) Rows(keyspace string, ids []string) []Row {
	n.t.Helper()
	const pageMax = 1000
	var rows []Row
	for len(ids) > 0 {
		page := ids[:min(pageMax, len(ids))]
		ids = ids[len(page):]
		var answer struct{ Results []Row }
		n.MustCall(http.MethodPost, "/v1/counters/"+keyspace+"/get?consistency=linearizable", map[string]any{"ids": page}, &answer)
		rows = append(rows, answer.Results...)
	}
	return rows
}

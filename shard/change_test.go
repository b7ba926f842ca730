package shard

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/countd/countd/shard/rpc"
)

// A change of unknown outcome is never reported as failed, and a failed one never as
// unknown.
func TestChangesTellTheirFate(t *testing.T) {
	told := func(code rpc.Code) error { return &rpc.Error{Code: code} }
	for name, test := range map[string]struct{ err, want error }{
		"not sent":      {fmt.Errorf("%w: no ping", rpc.ErrNotSent), ErrNoLeader},
		"lost":          {fmt.Errorf("%w: the connection broke", rpc.ErrCallLost), ErrOutcomeUnknown},
		"lost in time":  {fmt.Errorf("%w: %w", rpc.ErrCallLost, context.DeadlineExceeded), ErrOutcomeUnknown},
		"no leader":     {rpc.ErrLedBy("n2"), ErrNoLeader},
		"full disk":     {told(rpc.CodeOf(ErrDiskFull)), ErrDiskFull},
		"draining":      {told(rpc.CodeOf(ErrDraining)), ErrDraining},
		"too many":      {ErrOverloaded, ErrOverloaded},
		"unknown there": {told(rpc.CodeOf(ErrOutcomeUnknown)), ErrOutcomeUnknown},
		"without code":  {told(rpc.CodeOther), ErrOutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			got := fateOfChange(test.err)
			if wantsUnknown := errors.Is(test.want, ErrOutcomeUnknown); !errors.Is(got, test.want) || errors.Is(got, ErrOutcomeUnknown) != wantsUnknown {
				t.Errorf("told %v, want %v", got, test.want)
			}
		})
	}
	t.Run("not applied here in time", func(t *testing.T) {
		n := openNode(t, t.TempDir(), map[string]int{"posts": 1})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := n.catalogClient.awaitCatalog(ctx, 1<<40, errNotSeen); !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("told %v", err)
		}
	})
}

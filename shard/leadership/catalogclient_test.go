package leadership

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// The client never reports a change of unknown outcome as failed, nor a failed one as unknown.
func TestChangesTellTheirFate(t *testing.T) {
	told := func(code rpc.Code) error { return &rpc.Error{Code: code} }
	for name, test := range map[string]struct{ err, want error }{
		"not sent":      {fmt.Errorf("%w: no ping", rpc.ErrNotSent), errs.ErrNoLeader},
		"lost":          {fmt.Errorf("%w: the connection broke", rpc.ErrCallLost), errs.ErrOutcomeUnknown},
		"lost in time":  {fmt.Errorf("%w: %w", rpc.ErrCallLost, context.DeadlineExceeded), errs.ErrOutcomeUnknown},
		"no leader":     {rpc.ErrLedBy("n2"), errs.ErrNoLeader},
		"full disk":     {told(rpc.CodeOf(errs.ErrDiskFull)), errs.ErrDiskFull},
		"draining":      {told(rpc.CodeOf(errs.ErrDraining)), errs.ErrDraining},
		"too many":      {errs.ErrOverloaded, errs.ErrOverloaded},
		"unknown there": {told(rpc.CodeOf(errs.ErrOutcomeUnknown)), errs.ErrOutcomeUnknown},
		"without code":  {told(rpc.CodeOther), errs.ErrOutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			got := fateOfChange(test.err)
			if wantsUnknown := errors.Is(test.want, errs.ErrOutcomeUnknown); !errors.Is(got, test.want) || errors.Is(got, errs.ErrOutcomeUnknown) != wantsUnknown {
				t.Errorf("told %v, want %v", got, test.want)
			}
		})
	}
	t.Run("not applied here in time", func(t *testing.T) {
		c := &CatalogClient{cfg: CatalogConfig{Catalog: catalog.New()}}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.awaitCatalog(ctx, 1<<40, errNotSeen); !errors.Is(err, errs.ErrOutcomeUnknown) {
			t.Errorf("told %v", err)
		}
	})
}

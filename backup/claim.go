package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"syscall"
	"time"

	"github.com/countd/countd/internal/program"
)

// claimKind is what a run does to an archive.
type claimKind struct {
	name string
	// A claim is void after voidAfter. Its run ends after runMax, which is so much shorter that clocks may differ.
	voidAfter, runMax time.Duration
}

var (
	claimBackup = claimKind{"backup", 24 * time.Hour, 23 * time.Hour}
	claimSweep  = claimKind{"sweep", time.Hour, 30 * time.Minute}
)

const (
	claimsDir = "claims/"
	// claimWaitMax bounds how long a backup waits for a sweep.
	claimWaitMax  = 5 * time.Minute
	claimWaitStep = time.Second
	// unansweredMax is how long a manifest may be stored after the store gave no answer, and how far clocks may differ.
	unansweredMax = time.Hour
)

// ErrBusy is returned if another run uses the archive. The same call may succeed later.
var ErrBusy = errors.New("the archive is in use")

// claim marks a run that changes an archive.
type claim struct {
	a     *Archive
	kind  claimKind
	name  string    // path in the target
	since time.Time // with a monotonic reading
	// unanswered says that a manifest may still be stored, or a file deleted.
	unanswered bool
}

// claimBody tells an operator who holds a claim.
type claimBody struct {
	Since   time.Time `json:"since"`
	Host    string    `json:"host"`
	Process int       `json:"process"`
	Program string    `json:"program"`
}

var claimName = regexp.MustCompile(`^(backup|sweep)-([0-9]{8}T[0-9]{6}Z)-[0-9a-f]{8}\.json$`)

// take puts a claim and returns it, unless another claim excludes it: then it returns ErrBusy. A backup first waits
// claimWaitMax for the end of the other claim, and reports that it waits.
func (a *Archive) take(ctx context.Context, kind claimKind, report *Report) (*claim, error) {
	for waited := time.Duration(0); ; waited += claimWaitStep {
		c, err := a.tryTake(ctx, kind)
		if !errors.Is(err, ErrBusy) || kind.name != claimBackup.name || waited >= a.waitMax {
			return c, err
		}
		if waited == 0 {
			report.say("%v; waiting up to %s", err, a.waitMax)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(claimWaitStep):
		}
	}
}

func (a *Archive) tryTake(ctx context.Context, kind claimKind) (*claim, error) {
	since := a.now()
	c := &claim{a: a, kind: kind, since: since}
	c.name = c.pathAt(since)
	host, _ := os.Hostname() // only for information
	body, err := json.Marshal(claimBody{Since: since.UTC(), Host: host, Process: os.Getpid(), Program: program.VersionText()})
	if err != nil {
		return nil, err
	}
	err = a.target.Put(ctx, c.name, body)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) { // an empty file needs no space, and the sweep that it claims for makes some
		err = a.target.Put(ctx, c.name, nil)
	}
	if err != nil {
		err = fmt.Errorf("cannot claim the archive: %w", err)
	} else {
		err = c.check(ctx)
	}
	if err != nil {
		c.release(ctx) // a Put that failed may have stored it
		return nil, err
	}
	return c, nil
}

// pathAt returns a path for a claim of the same run that counts from a time.
func (c *claim) pathAt(since time.Time) string {
	return claimsDir + c.kind.name + "-" + c.a.newName(since) + ".json"
}

// check returns an error unless the claim is there, is younger than its run may take, and no other one excludes it.
func (c *claim) check(ctx context.Context) error {
	if err := c.inTime(); err != nil {
		return err
	}
	names, err := c.a.target.List(ctx, claimsDir)
	if err != nil {
		return fmt.Errorf("cannot list the claims of the archive: %w", err)
	}
	here := false
	for _, name := range names {
		parts := claimName.FindStringSubmatch(path.Base(name))
		if name == c.name {
			here = true
		} else if parts != nil && c.excludedBy(parts[1], parts[2]) {
			return fmt.Errorf("%w: a %s of it began at %s and has not ended; a killed one is ignored %s after it began, or delete its file %s",
				ErrBusy, parts[1], parts[2], kindOf(parts[1]).voidAfter, name)
		}
	}
	if !here {
		return fmt.Errorf("the claim %s of this run was deleted", c.name)
	}
	return nil
}

// inTime returns an error if the run takes too long. Then others may take its claim for that of a killed run.
func (c *claim) inTime() error {
	now := c.a.now()
	// The monotonic clock stands still while the machine is suspended, and the wall clock may be set back.
	if took := max(now.Sub(c.since), now.Round(0).Sub(c.since.Round(0))); took > c.kind.runMax {
		return fmt.Errorf("the %s takes longer than %s", c.kind.name, c.kind.runMax)
	}
	return nil
}

func (c *claim) excludedBy(kind, since string) bool {
	return (kind != claimBackup.name || c.kind.name != claimBackup.name) && !c.a.void(kind, since)
}

// void reports whether a claim is that of a run that was killed, or of a clock that was far ahead.
func (a *Archive) void(kind, since string) bool {
	began, err := time.Parse(nameTime, since)
	return err == nil && a.now().Sub(began).Abs() > kindOf(kind).voidAfter
}

func kindOf(name string) claimKind {
	if name == claimSweep.name {
		return claimSweep
	}
	return claimBackup
}

// note notes the error of a call that stores a manifest or deletes a file: what no other run may meet.
func (c *claim) note(err error) { c.unanswered = c.unanswered || errors.Is(err, errUnanswered) }

// release deletes the claim, also if ctx has ended. If that fails, the claim stays until it is void. It also stays if a
// call of the run may still take effect. A backup's would then stay for long, so release replaces it by one that is void
// after unansweredMax.
func (c *claim) release(ctx context.Context) {
	const releaseMax = 30 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseMax)
	defer cancel()
	if c.unanswered {
		late := c.a.now().Add(unansweredMax - c.kind.voidAfter)
		if c.kind.name != claimBackup.name || c.a.target.Put(ctx, c.pathAt(late), nil) != nil {
			return
		}
	}
	_ = c.a.target.Delete(ctx, c.name)
}

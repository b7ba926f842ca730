package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/countd/countd/backup"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/must"
)

// eachHour is a schedule.
type eachHour struct{}

func (eachHour) Next(t time.Time) time.Time { return t.Truncate(time.Hour).Add(time.Hour) }

// backupWorld has what scheduled backups meet: a clock, a leadership and an archive.
type backupWorld struct {
	*Backups
	at     time.Time
	led    atomic.Bool
	begun  time.Time // of the newest backup in the archive
	made   int
	broken error                     // of the archive; nil for none
	full   error                     // of add alone; nil for none
	hang   func(ctx context.Context) // called by add; nil for nothing
	events []clientadmin.AuditEvent

	pruned   int   // calls of prune
	unpruned error // of prune
	begins   []bool
}

func newBackupWorld(t *testing.T) *backupWorld {
	t.Helper()
	w := &backupWorld{at: time.Date(2026, 11, 29, 17, 20, 0, 0, time.UTC)}
	var err error
	w.Backups, err = NewBackups(New(Config{Logger: slog.New(slog.DiscardHandler)}), BackupSettings{To: "/b", Schedule: eachHour{}},
		func(e clientadmin.AuditEvent) { w.events = append(w.events, e) }, prometheus.NewPedanticRegistry())
	must.Do(t, err)
	w.leads, w.now = w.led.Load, func() time.Time { return w.at }
	w.open = func(_ context.Context, begin bool) (archiver, error) {
		w.begins = append(w.begins, begin)
		return w, nil
	}
	w.has = func(context.Context) (bool, error) { return false, nil }
	w.clusterID = func() (string, error) { return "x", nil }
	w.led.Store(true)
	t.Cleanup(func() { must.Do(t, w.Close(context.Background())) })
	return w
}

func (w *backupWorld) newest(context.Context) (time.Time, error) { return w.begun, w.broken }

func (w *backupWorld) add(ctx context.Context) (addedBackup, error) {
	began := w.at
	if w.hang != nil {
		w.hang(ctx)
	}
	if err := errors.Join(w.broken, w.full, ctx.Err()); err != nil {
		return addedBackup{}, err
	}
	w.at = w.at.Add(time.Minute) // it takes a minute
	w.made, w.begun = w.made+1, began
	return addedBackup{name: began.Format(time.RFC3339), begun: began, bytes: 100, stored: 10}, nil
}

func (w *backupWorld) prune(context.Context) (int, error) {
	w.pruned++
	return 1, w.unpruned
}

// looks looks each minute until a time of the day, and returns when it made backups.
func (w *backupWorld) looks(until string) (made []string) {
	end, err := time.Parse("2006-01-02 15:04", "2026-11-29 "+until)
	if err != nil {
		panic(err)
	}
	for ; !w.at.After(end); w.at = w.at.Add(time.Minute) {
		before, at := w.made, w.at
		if w.look(); w.made > before {
			made = append(made, at.Format("15:04"))
		}
	}
	return made
}

// failuresAt returns when backups failed, by the audited events from a number on.
func (w *backupWorld) failuresAt(from int) string {
	var at []string
	for _, e := range w.events[from:] {
		if strings.HasPrefix(e.Outcome, "failed: ") {
			at = append(at, e.Time.Format("15:04"))
		}
	}
	return strings.Join(at, " ")
}

func (w *backupWorld) expects(t *testing.T, until, want string) {
	t.Helper()
	if got := strings.Join(w.looks(until), " "); got != want {
		t.Errorf("backups until %s at %q, want %q", until, got, want)
	}
}

func metricOf(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	must.Do(t, m.Write(&out))
	return out.GetGauge().GetValue() + out.GetCounter().GetValue()
}

// An empty archive gets a backup at once, then one by the schedule. Metrics and the audit log have it.
func TestBackupsFollowTheirSchedule(t *testing.T) {
	w := newBackupWorld(t)
	w.expects(t, "19:30", "17:20 18:00 19:00")
	if len(w.events) != 3 || w.events[0].What != "backup" || w.events[0].Target != "/b 2026-11-29T17:20:00Z" || w.events[0].Outcome != "ok" {
		t.Errorf("audited: %+v", w.events)
	}
	for of, want := range map[prometheus.Gauge]float64{
		w.success: float64(w.begun.Unix()), w.overdue: float64(w.begun.Add(2 * time.Hour).Unix()), w.bytes: 100, w.stored: 10, w.seconds: 60,
	} {
		if got := metricOf(t, of); got != want {
			t.Errorf("%v is %v, want %v", of.Desc(), got, want)
		}
	}
	if p := w.Problem(w.at); p != "" || metricOf(t, w.failures) != 0 {
		t.Errorf("a problem: %s", p)
	}
}

// A new leader goes on with the schedule from the newest backup of the archive. It makes an overdue backup at
// once, and does not wait for a time that a wrong clock wrote. A node that does not lead makes none, and its
// gauges are 0.
func TestBackupsOfANewLeader(t *testing.T) {
	w := newBackupWorld(t)
	w.led.Store(false)
	w.expects(t, "17:29", "")
	w.begun = w.at.Add(-10 * time.Minute)
	w.led.Store(true)
	w.expects(t, "18:10", "18:00")
	w.led.Store(false)
	w.expects(t, "20:10", "")
	for _, g := range []prometheus.Gauge{w.success, w.overdue, w.bytes, w.stored, w.seconds} {
		if got := metricOf(t, g); got != 0 {
			t.Errorf("without the leadership, %v is %v", g.Desc(), got)
		}
	}
	if p := w.Problem(w.at); p != "" {
		t.Errorf("without the leadership: %s", p)
	}
	w.led.Store(true)
	w.expects(t, "20:30", "20:11")
	w.led.Store(false)
	w.looks("20:31")
	w.begun = w.at.AddDate(1, 0, 0)
	w.led.Store(true)
	w.expects(t, "21:30", "21:00")
}

// A failed backup is tried again after pauses that grow to half an hour. Until a backup succeeds, the problem says
// so, and that the newest is too old once two intervals have passed. The pauses begin anew after a success.
func TestBackupsThatFail(t *testing.T) {
	w := newBackupWorld(t)
	w.expects(t, "17:30", "17:20")
	w.broken = errors.New("no permission")
	w.expects(t, "18:59", "")
	if got := w.failuresAt(0); got != "18:00 18:01 18:03 18:07 18:15 18:31" {
		t.Errorf("tries at %s", got)
	}
	if p := w.Problem(w.at); p != "the last 6 tries to back up to /b failed: no permission" {
		t.Errorf("the problem: %s", p)
	}
	w.expects(t, "19:00", "")
	if p := w.Problem(w.at); !strings.HasPrefix(p, "the newest backup in /b began at 2026-11-29T17:20:00Z, over two intervals of --backup-schedule ago; the last 6 tries") {
		t.Errorf("the problem: %s", p)
	}
	if got := metricOf(t, w.failures); got != 6 || w.events[6].Outcome != "failed: no permission" {
		t.Errorf("%v failures, audited %+v", got, w.events)
	}
	w.broken = nil
	w.expects(t, "20:30", "19:01 20:00")
	if p := w.Problem(w.at); p != "" {
		t.Errorf("a problem: %s", p)
	}
	before := len(w.events)
	w.broken = errors.New("again")
	w.expects(t, "21:02", "")
	if got := w.failuresAt(before); got != "21:00 21:01" {
		t.Errorf("tries at %s", got)
	}

	// An archive that was never readable has no newest backup.
	w = newBackupWorld(t)
	w.broken = errors.New("no permission")
	w.expects(t, "18:59", "")
	if p := w.Problem(w.at); strings.Contains(p, "there is no backup") || !strings.Contains(p, "failed: no permission") {
		t.Errorf("the problem: %s", p)
	}
	w.expects(t, "19:01", "")
	if p := w.Problem(w.at); !strings.Contains(p, "there is no backup in /b; the last") {
		t.Errorf("the problem: %s", p)
	}
}

// While backups fail, the node reads each minute whether somebody else has made one. Then the failures no longer count,
// and the schedule goes on from that backup. A backup of the future is nobody's: a clock was wrong.
func TestBackupsOfSomebodyElse(t *testing.T) {
	w := newBackupWorld(t)
	w.expects(t, "17:30", "17:20")
	w.hang = func(context.Context) { w.broken = errors.New("no space") }
	w.looks("18:16")
	w.broken, w.begun = nil, w.at.AddDate(1, 0, 0)
	if w.looks("18:20"); w.Problem(w.at) == "" {
		t.Error("a backup of the future ends the warning")
	}
	w.begun = w.at
	if w.looks("18:22"); w.Problem(w.at) != "" {
		t.Errorf("a minute after somebody else's backup: %s", w.Problem(w.at))
	}
	if got, want := metricOf(t, w.success), float64(w.begun.Unix()); got != want {
		t.Errorf("the newest backup is of %v, want %v", got, want)
	}
	w.hang = nil
	w.expects(t, "19:30", "19:00")

	// If that backup was made too long ago, the next one is due at once. If it fails, that counts like any failure.
	late, before := w.begun.Add(time.Minute), len(w.events)
	w.full = errors.New("no space")
	w.looks("20:01")
	w.begun = late
	w.looks("20:05")
	if got := w.failuresAt(before); got != "20:00 20:01 20:02" {
		t.Errorf("tries at %s", got)
	}
	w.full, w.mu.failed = nil, nil

	// A leader that can write, but has no chance to, names the command that helps.
	w.mu.newest = w.at.Add(-3 * time.Hour)
	if p := w.Problem(w.at); !strings.HasSuffix(p, "; countctl backup --to '/b' makes one now") {
		t.Errorf("without a failure: %s", p)
	}
	w.settings.Recipients = &backup.Recipients{}
	if p := w.Problem(w.at); !strings.HasSuffix(p, "; countctl backup --to '/b' --backup-recipients FILE makes one now") {
		t.Errorf("of sealed backups: %s", p)
	}
	w.settings.Recipients = nil
	// A node that had an archive does not begin one again.
	if !w.begins[0] || slices.Contains(w.begins[1:], true) {
		t.Errorf("may begin an archive: %v", w.begins)
	}
}

// A node that has seen an archive, also one of another node, begins none in this target, even after a restart. In another
// target it may.
func TestBackupsRememberTheirArchive(t *testing.T) {
	memory := &seenMemory{}
	begins := func(to string, restart func(*backupWorld)) bool {
		w := newBackupWorld(t)
		w.settings.To, w.settings.Seen = to, memory
		restart(w)
		w.look()
		return w.begins[0]
	}
	if !begins("/a", func(w *backupWorld) {
		w.open = func(_ context.Context, begin bool) (archiver, error) {
			w.begins = append(w.begins, begin)
			return nil, backup.ErrNoArchive
		}
	}) {
		t.Error("a new node may not begin an archive")
	}
	nothing := func(*backupWorld) {}
	if !begins("/a", nothing) || begins("/a", nothing) {
		t.Error("a node may begin an archive where it has one")
	}
	if begins("/b", func(w *backupWorld) {
		w.has = func(context.Context) (bool, error) { return true, nil }
		w.awaitArchive()
	}) {
		t.Error("a node may begin an archive where another node has one")
	}
	if !begins("/c", nothing) {
		t.Error("a node may not begin an archive in another target")
	}
	if begins("/a", nothing) || begins("/b", nothing) {
		t.Error("a node forgets an earlier target")
	}

	// A node that cannot read its memory backs up, but begins no archive.
	w := newBackupWorld(t)
	w.settings.Seen = &seenMemory{damaged: errors.New("it is damaged")}
	if w.look(); len(w.begins) != 1 || w.begins[0] || w.made != 1 || w.Problem(w.at) != "" {
		t.Errorf("a damaged memory: begins %v, made %d; %s", w.begins, w.made, w.Problem(w.at))
	}
	w = newBackupWorld(t)
	w.settings.Seen = &seenMemory{damaged: errors.New("it is damaged")}
	w.open = func(context.Context, bool) (archiver, error) { return nil, backup.ErrNoArchive }
	if w.look(); !strings.HasSuffix(w.Problem(w.at), "failed: there is no archive; it is damaged") {
		t.Errorf("a damaged memory without an archive: %s", w.Problem(w.at))
	}
}

// seenMemory implements seenArchives.
type seenMemory struct {
	to      []string
	damaged error
}

func (m *seenMemory) ArchiveSeen(id, to string) (bool, error) {
	return slices.Contains(m.to, id+to), m.damaged
}

func (m *seenMemory) NoteArchiveSeen(id, to string) error {
	m.to = append(m.to, id+to)
	return m.damaged
}

// Old backups are removed after each backup, and after a failed one, because the target may be full; not if the archive
// is damaged. The problem has the error until a removal succeeds. Another run counts from its second time.
func TestBackupsThatCannotBeRemoved(t *testing.T) {
	w := newBackupWorld(t)
	w.unpruned = errors.New("chunks/87: no permission")
	w.expects(t, "17:30", "17:20")
	if p := w.Problem(w.at); p != "old backups in /b cannot be removed: chunks/87: no permission" || metricOf(t, w.pruneFailures) != 1 {
		t.Errorf("the problem: %s", p)
	}
	w.unpruned = backup.ErrBusy
	w.expects(t, "18:30", "18:00")
	if p := w.Problem(w.at); p != "" {
		t.Errorf("beside another backup: %s", p)
	}
	w.expects(t, "19:30", "19:00")
	if p := w.Problem(w.at); !strings.Contains(p, "in use") {
		t.Errorf("after two: %s", p)
	}
	w.unpruned, w.pruned = nil, 0
	w.hang = func(context.Context) { w.broken = errors.New("no space") }
	w.expects(t, "20:00", "")
	if w.pruned != 1 || !strings.HasSuffix(w.Problem(w.at), "failed: no space") {
		t.Errorf("after a failed backup: removed %d times; %s", w.pruned, w.Problem(w.at))
	}
	w.broken, w.pruned = nil, 0
	w.hang = func(context.Context) { w.broken = fmt.Errorf("%w: chunk", backup.ErrIncomplete) }
	w.looks("20:01")
	if p := w.Problem(w.at); w.pruned != 0 || !strings.HasSuffix(p, "chunk; countctl backup verify '/b' names the damaged files") {
		t.Errorf("of a damaged archive: removed %d times; %s", w.pruned, p)
	}
}

// While the target hangs, the gauges and the problem follow the leadership.
func TestBackupsOfAHangingTarget(t *testing.T) {
	w := newBackupWorld(t)
	w.look()
	w.at = w.at.Add(3 * time.Hour)
	hangs, release, looked := make(chan struct{}), make(chan struct{}), make(chan struct{})
	w.hang = func(context.Context) { close(hangs); <-release }
	go func() { w.look(); close(looked) }() // ends with release
	<-hangs
	at := w.at
	if w.Problem(at) == "" || metricOf(t, w.overdue) == 0 {
		t.Error("there is no problem")
	}
	w.led.Store(false)
	must.Become(t, "the problem ends with the leadership", func() bool { return w.Problem(at) == "" && metricOf(t, w.overdue) == 0 && metricOf(t, w.success) == 0 })
	w.led.Store(true)
	must.Become(t, "the problem of a new leadership is known", func() bool { return w.Problem(at.Add(3*time.Hour)) != "" })
	close(release)
	<-looked
	if w.made != 1 || metricOf(t, w.failures) != 0 {
		t.Errorf("%d backups, %v failures", w.made, metricOf(t, w.failures))
	}
}

// A backup ends once its node no longer leads the catalog, or closes. Neither counts as a failure.
func TestBackupsEndWithTheLeadership(t *testing.T) {
	for name, end := range map[string]func(*backupWorld){
		"leadership": func(w *backupWorld) { w.led.Store(false) },
		"close":      func(w *backupWorld) { w.cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newBackupWorld(t)
			w.hang = func(ctx context.Context) { end(w); <-ctx.Done() }
			w.look()
			if w.made != 0 || len(w.events) != 0 || metricOf(t, w.failures) != 0 {
				t.Errorf("%d backups, audited %+v", w.made, w.events)
			}
		})
	}
	w := newBackupWorld(t)
	w.now = time.Now
	begun, release := make(chan struct{}), make(chan struct{})
	w.hang = func(context.Context) { close(begun); <-release }
	w.Start()
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("while the target hangs, Close returns %v", err)
	}
	close(release)
}

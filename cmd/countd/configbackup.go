package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/backup"
	"github.com/countd/countd/cluster"
)

const (
	// backupEveryMin and backupEveryMax bound @every. Backups do not run concurrently, so a short interval makes
	// one backup follow the other.
	backupEveryMin, backupEveryMax = time.Second, 8784 * time.Hour
)

// backupConfig has the settings of scheduled backups.
type backupConfig struct {
	To       string
	Schedule backupSchedule
	Keep     backup.Keep
	// RecipientsFile has the recipients that validate reads.
	RecipientsFile string
	recipients     *backup.Recipients
}

var backupDefault = backupConfig{Schedule: hourly(), Keep: backup.Keep{Hours: 24, Days: 7, Weeks: 4}}

func hourly() (s backupSchedule) {
	_ = s.Set("@hourly") // it is a schedule of the library
	return s
}

// add adds the settings of scheduled backups.
func (b *backupConfig) add(c *config) {
	*b = backupDefault
	c.flags.StringVar(&b.To, "backup-to", "", "where the cluster is backed up to: an existing directory that all nodes share, as an absolute path outside --data-dir, or s3://BUCKET/PREFIX?endpoint=HOST:PORT&insecure=true&region=REGION with credentials as in countctl backup --help; the same on all nodes (default: no backups)")
	c.flags.Var(&b.Schedule, "backup-schedule", "with --backup-to: when a backup begins, as minute hour day month weekday in UTC, @hourly, @daily, @weekly, @monthly or @every DURATION of 1s to 8784h; 0 for never")
	c.flags.Var(keepFlag{&b.Keep}, "backup-keep", "backups to keep: the newest of each of the last hours, days and weeks that have one, each 0 to 10000, and the newest two; 0 to keep all")
	c.flags.StringVar(&b.RecipientsFile, "backup-recipients", "", "with --backup-to: a file of age recipients (public keys age1…, one in each line) that the archive is sealed for; the same on all nodes (default: not sealed)")
}

// validate refuses settings of backups without a target, and a target that cannot be meant.
func (b *backupConfig) validate(c *config) error {
	if b.To == "" {
		switch { // a configuration file may set the defaults, because printEffective writes them
		case b.Schedule.text != backupDefault.Schedule.text:
			return c.bad("backup-schedule", "needs --backup-to")
		case b.Keep != backupDefault.Keep:
			return c.bad("backup-keep", "needs --backup-to")
		case b.RecipientsFile != "":
			return c.bad("backup-recipients", "needs --backup-to")
		}
		return nil
	}
	target, err := backup.OpenTarget(context.Background(), b.To)
	if err != nil {
		return c.bad("backup-to", err.Error())
	}
	if b.RecipientsFile != "" {
		if b.recipients, err = backup.ReadRecipients(b.RecipientsFile); err != nil {
			return c.bad("backup-recipients", err.Error())
		}
	}
	if _, is := target.(backup.Directory); !is {
		return nil
	}
	if !filepath.IsAbs(b.To) {
		return c.bad("backup-to", fmt.Sprintf("%q is no absolute path", b.To))
	}
	if inside, err := filepath.Rel(realPath(c.DataDir), realPath(b.To)); err == nil && filepath.IsLocal(inside) {
		return c.bad("backup-to", fmt.Sprintf("%s is within the data-dir, which a backup must outlive", b.To))
	}
	return nil
}

func (b *backupConfig) settings(dir *cluster.DataDir) admin.BackupSettings {
	return admin.BackupSettings{To: b.To, Seen: dir, Schedule: b.Schedule.Schedule, Keep: b.Keep, Recipients: b.recipients}
}

// backupSchedule is a flag for a schedule in UTC.
type backupSchedule struct {
	text          string
	cron.Schedule // nil for never
}

func (*backupSchedule) Type() string     { return "SCHEDULE" }
func (s *backupSchedule) String() string { return s.text }

func (s *backupSchedule) Set(text string) error {
	schedule, err := parseSchedule(text)
	if err != nil {
		return err
	}
	s.text, s.Schedule = text, schedule
	return nil
}

func parseSchedule(text string) (cron.Schedule, error) {
	const want = "want minute hour day month weekday, @hourly, @daily, @weekly, @monthly, @every DURATION, or 0 for never"
	if text == "0" {
		return nil, nil
	}
	if every, is := strings.CutPrefix(text, "@every "); is {
		d, err := time.ParseDuration(every)
		if err != nil || d < backupEveryMin || d > backupEveryMax {
			return nil, fmt.Errorf("%s: %q is no duration in %v…%v", want, every, backupEveryMin, backupEveryMax)
		}
		return cron.Every(d), nil
	}
	if strings.Contains(text, "TZ=") { // cron would read a time zone, and panics if nothing follows
		return nil, errors.New(want + ", in UTC")
	}
	schedule, err := cron.ParseStandard(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", want, err)
	}
	if schedule.Next(time.Now().UTC()).IsZero() {
		return nil, errors.New("no day of the next five years is in this schedule")
	}
	return schedule, nil
}

// keepFlag is a flag for the backups to keep. The zero value keeps all.
type keepFlag struct{ keep *backup.Keep }

func (keepFlag) Type() string { return "hours=N,days=N,weeks=N" }

func (f keepFlag) String() string { return f.keep.String() }

func (f keepFlag) Set(text string) (err error) {
	*f.keep, err = backup.ParseKeep(text)
	return err
}

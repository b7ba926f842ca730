package data

import (
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/cmd/countctl/internal/bulk"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

const (
	// speedMax is the value of --speed with which a replay does not wait.
	speedMax = "max"
	// replayTick is the real time that one batch covers, unless the speed is max. It bounds the
	// delay of an event that waits for its batch. A longer tick puts more events into a request.
	replayTick = 100 * time.Millisecond
)

func replayCommand(c *cli.CLI) *cobra.Command {
	f := importFlags{about: bulk.FileState{Kind: bulk.KindEvents}}
	var speed string
	cmd := &cobra.Command{
		Use:   "replay FILE.csv[.gz]|-",
		Short: "Add the events of a CSV file, one by one",
		Long: `Add 1 for each event of a CSV file with the columns item, t and event, plain or
gzipped: at full speed, or at N times the speed at which t, in seconds, passes.

--map names the column that counts an event; NAME= ignores the event. Events without
a --map are counted by the column of their name, if there is one; any other event is a
bad row.

Each event counts once, however often the command or the server is killed and the
command is run again. FILE.replay-progress has the position. Do not delete that file: it
keeps a finished FILE from being added twice. --restart adds all events again, and so
does another --state. Standard input cannot be read again, so such a run cannot continue.

At full speed a row needs no time; with --speed, a row without a time is a bad row. A
run that continues may have another --speed, but the first run decides whether times are
needed.`,
		Example: "  countctl replay events.csv.gz --speed 60 --map retweet=repost,mention=comment,reply=comment",
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if f.speed, err = parseSpeed(speed); err != nil {
				return err
			}
			return importFile(cmd.Context(), c, args[0], f)
		},
	}
	f.register(c, cmd, "item")
	flags := cmd.Flags()
	flags.StringSliceVar(&f.about.Map, "map", nil, "columns that count events, EVENT=COLUMN,…")
	flags.StringVar(&f.about.Events.Event, "event-column", "event", "column of the file that names the event")
	flags.StringVar(&f.about.Events.Time, "time-column", "t", "column of the file that holds the time in seconds, for --speed")
	flags.StringVar(&speed, "speed", speedMax, "times real time, or max")
	return cmd
}

// parseSpeed parses the value of --speed. It returns 0 for max.
func parseSpeed(text string) (float64, error) {
	if text == speedMax {
		return 0, nil
	}
	speed, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(speed) || math.IsInf(speed, 0) || speed <= 0 {
		return 0, cli.Usagef("--speed is a number above 0, or %s, not %q", speedMax, text)
	}
	return speed, nil
}

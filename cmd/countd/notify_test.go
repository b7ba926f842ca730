package main

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
)

// The messages to systemd have the format of sd_notify(3). Without a socket, nothing is sent.
func TestNotifier(t *testing.T) {
	logger := slog.New(slog.DiscardHandler)
	t.Setenv("NOTIFY_SOCKET", "")
	newNotifier(logger).send("READY=1")

	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(must.BecomeMax)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", path)
	n := newNotifier(logger)
	n.send("READY=1" + status("serving"))
	alive := make(chan struct{}, 1)
	go n.watch(time.Millisecond, func() {
		select {
		case alive <- struct{}{}:
		default:
		}
	})
	for _, want := range []string{"READY=1\nSTATUS=serving", "WATCHDOG=1"} {
		got := make([]byte, 100)
		size, err := conn.Read(got)
		if err != nil || string(got[:size]) != want {
			t.Errorf("told %q, %v, want %q", got[:size], err, want)
		}
	}
	<-alive
}

func TestWatchdogEvery(t *testing.T) {
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
	}{
		{"", "", 0}, {"x", "", 0}, {"-1", "", 0}, {"30000000", "", 15 * time.Second}, {"30000000", "1", 0},
		{"30000000", strconv.Itoa(os.Getpid()), 15 * time.Second},
	} {
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		if got := watchdogEvery(); got != c.want {
			t.Errorf("WATCHDOG_USEC %q, WATCHDOG_PID %q: %v, want %v", c.usec, c.pid, got, c.want)
		}
	}
}

// A second stop signal that follows at once counts as the same signal.
func TestSignalsTogetherAreOne(t *testing.T) {
	signals, got := make(chan os.Signal), make(chan os.Signal, 1)
	go func() { got <- awaitAnother(signals, time.Now(), time.Hour) }()
	for range 3 {
		signals <- os.Interrupt // awaitAnother must receive each signal, but return none of them
	}
	close(signals)
	if s := <-got; s != nil {
		t.Errorf("%v counts as another", s)
	}
	late := make(chan os.Signal, 1)
	late <- os.Interrupt
	if s := awaitAnother(late, time.Now().Add(-time.Minute), time.Second); s != os.Interrupt {
		t.Errorf("a minute later came %v", s)
	}
}

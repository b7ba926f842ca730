package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"
)

// notifier reports the state of the process to systemd, or to another reader of NOTIFY_SOCKET, as
// sd_notify(3) does. A nil notifier does nothing.
type notifier struct {
	conn   net.Conn
	logger *slog.Logger
}

// newNotifier returns a notifier, or nil if NOTIFY_SOCKET is not set or cannot be reached.
func newNotifier(logger *slog.Logger) *notifier {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	conn, err := net.Dial("unixgram", path) // a leading @ means an abstract socket
	if err != nil {
		logger.Warn("cannot reach NOTIFY_SOCKET", "err", err)
		return nil
	}
	return &notifier{conn, logger}
}

// send sends one state, such as READY=1.
func (n *notifier) send(state string) {
	if n == nil {
		return
	}
	if _, err := n.conn.Write([]byte(state)); err != nil {
		n.logger.Warn("cannot write to NOTIFY_SOCKET", "state", state, "err", err)
	}
}

// watchdogEvery returns the interval of watchdog messages: half of WATCHDOG_USEC, or 0 if systemd
// does not watch this process.
func watchdogEvery() time.Duration {
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || usec <= 0 || usec > int64(24*time.Hour/time.Microsecond) {
		return 0
	}
	return time.Duration(usec) * time.Microsecond / 2
}

// watch sends watchdog messages until the process ends. Before each message it calls alive, which
// acquires the same locks as requests do. If alive hangs because groups hang, the messages stop,
// and systemd restarts the process.
func (n *notifier) watch(every time.Duration, alive func()) {
	for n != nil && every > 0 {
		time.Sleep(every)
		alive()
		n.send("WATCHDOG=1")
	}
}

// status formats the text that systemctl status shows with the state.
func status(text string) string { return fmt.Sprintf("\nSTATUS=%s", text) }

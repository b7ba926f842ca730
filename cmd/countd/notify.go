package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"
)

// notifier tells systemd, or what else reads NOTIFY_SOCKET, what becomes of the process:
// sd_notify(3). A nil notifier tells nobody.
type notifier struct {
	conn   net.Conn
	logger *slog.Logger
}

// newNotifier returns nil when NOTIFY_SOCKET is not set or cannot be reached: the process
// serves all the same.
func newNotifier(logger *slog.Logger) *notifier {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	conn, err := net.Dial("unixgram", path) // a leading @ is an abstract socket
	if err != nil {
		logger.Warn("cannot reach NOTIFY_SOCKET", "err", err)
		return nil
	}
	return &notifier{conn, logger}
}

// tell sends one state, such as READY=1.
func (n *notifier) tell(state string) {
	if n == nil {
		return
	}
	if _, err := n.conn.Write([]byte(state)); err != nil {
		n.logger.Warn("cannot write to NOTIFY_SOCKET", "state", state, "err", err)
	}
}

// watchdogEvery returns how often to tell that the process lives: twice in the time
// that WATCHDOG_USEC gives this process, 0 for never.
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

// watch tells that the process lives while alive returns, until the process ends. One
// whose groups hang is restarted: alive takes the locks that serving takes.
func (n *notifier) watch(every time.Duration, alive func()) {
	for n != nil && every > 0 {
		time.Sleep(every)
		alive()
		n.tell("WATCHDOG=1")
	}
}

// status is what systemctl status shows beside the state.
func status(text string) string { return fmt.Sprintf("\nSTATUS=%s", text) }

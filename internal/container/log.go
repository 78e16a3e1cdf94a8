package container

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
)

// SetLog sends the log of libcontainer, of this process and of the containers' init
// processes, to log; debug messages are made only if log's handler takes them. Without it
// libcontainer writes to stderr in its own form. Its logger is one for the whole process:
// call SetLog once, before the package's other functions.
func SetLog(log *slog.Logger) {
	logrus.SetOutput(io.Discard)
	logrus.SetLevel(logrus.InfoLevel)
	if log.Enabled(context.Background(), slog.LevelDebug) {
		logrus.SetLevel(logrus.DebugLevel)
	}
	hooks := logrus.LevelHooks{}
	hooks.Add(logForwarder{log})
	logrus.StandardLogger().ReplaceHooks(hooks)
}

// A logForwarder is the logrus hook that hands entries on.
type logForwarder struct{ log *slog.Logger }

func (f logForwarder) Levels() []logrus.Level { return logrus.AllLevels }

func (f logForwarder) Fire(e *logrus.Entry) error {
	ctx := context.Background()
	level := slogLevel(e.Level)
	if !f.log.Enabled(ctx, level) {
		return nil
	}
	var place uintptr
	if f.log.Enabled(ctx, slog.LevelDebug) { // as runc does
		place = caller()
	}
	r := slog.NewRecord(e.Time, level, e.Message, place)
	for _, key := range slices.Sorted(maps.Keys(e.Data)) {
		r.AddAttrs(slog.Any(key, e.Data[key]))
	}
	return f.log.Handler().Handle(ctx, r)
}

// caller is the place that logs. It is 0 for the messages that libcontainer forwards from a container's init. logrus can
// find the place, too. But then libcontainer copies the logger of the process for each container, maybe while
// the logger is locked.
func caller() uintptr {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)]) // without Callers, caller and Fire
	for {
		frame, more := frames.Next()
		switch {
		case strings.Contains(frame.Function, "/sirupsen/logrus."):
		case strings.Contains(frame.Function, "/libcontainer/logs."):
			return 0
		default:
			return frame.PC + 1 // slog takes the address after the call
		}
		if !more {
			return 0
		}
	}
}

func slogLevel(l logrus.Level) slog.Level {
	switch {
	case l >= logrus.DebugLevel:
		return slog.LevelDebug
	case l == logrus.InfoLevel:
		return slog.LevelInfo
	case l == logrus.WarnLevel:
		return slog.LevelWarn
	}
	return slog.LevelError
}

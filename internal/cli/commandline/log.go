package commandline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/urfave/cli/v3"
	"golang.org/x/term"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
)

// Reporter writes messages to the file of --log, or without --log to stderr. Daemons take the
// last entry of level "error" in the file as the reason of a failure.
type Reporter struct {
	log    *slog.Logger
	stderr *os.File
	toFile bool
	plain  bool // errors on stderr are for a person, not for a daemon
	serves bool // the log is for the admin of a daemon: this program
}

// NewReporter returns a Reporter that writes to stderr until openFor.
func NewReporter(stderr *os.File) *Reporter {
	return &Reporter{log: slog.New(newHandler(stderr, "text", slog.LevelInfo)), stderr: stderr, plain: true}
}

// openFor opens the log that the flags of the root command describe.
func (r *Reporter) openFor(root *cli.Command) error {
	sub := root.Command(root.Args().First())
	r.plain = sub == nil || sub.Category != CategoryOCI
	r.serves = sub != nil && sub.Name == LauncherName
	return r.open(root.String("log"), root.String("log-format"), root.Bool("debug"))
}

// open opens the log: the file, or stderr if file is empty, in the format text or json.
// The file stays open for the life of the program.
func (r *Reporter) open(file, format string, debug bool) error {
	switch format {
	case "", "text", "json":
	default:
		return fmt.Errorf("invalid log-format: %s", format)
	}
	w := r.stderr
	if file != "" {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			return err
		}
		w, r.toFile = f, true
	}
	level := slog.LevelInfo
	switch {
	case debug:
		level = slog.LevelDebug
	case r.plain && !r.serves && !r.toFile:
		// Warnings of libcontainer are not for the user of the command.
		level = slog.LevelError
	}
	handler := newHandler(w, format, level)
	if !r.toFile && !debug && format != "json" && !r.serves && term.IsTerminal(int(w.Fd())) {
		handler = messages{handler, w}
	}
	r.log = slog.New(handler)
	return nil
}

// messages writes entries for a person at a terminal, in the form of [Reporter.Fatal].
type messages struct {
	slog.Handler
	w io.Writer
}

// Handle writes an entry as one message. An error is the default: other levels are named.
func (m messages) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	if r.Level < slog.LevelError {
		text = shapeAttr(nil, slog.Any(slog.LevelKey, r.Level)).Value.String() + ": " + text
	}
	r.Attrs(func(a slog.Attr) bool {
		text += fmt.Sprintf(" (%s: %v)", a.Key, a.Value)
		return true
	})
	_, err := fmt.Fprintf(m.w, "%s: %s\n", Program, streams.Escaped(text))
	return err
}

// Fatal reports the error that ends the program: to stderr, and to the log if that is a file.
func (r *Reporter) Fatal(err error) {
	if r.toFile {
		r.log.Error(err.Error())
	}
	var exit *ExitError
	switch {
	case errors.As(err, &exit) && exit.Plain || r.plain || term.IsTerminal(int(r.stderr.Fd())):
		text := err.Error()
		for _, own := range []string{Program + ": ", Program + " "} { // errors in runc's words begin so
			text = strings.TrimPrefix(text, own)
		}
		fmt.Fprintf(r.stderr, "%s: %s\n", Program, streams.Escaped(text))
	case r.toFile:
		fmt.Fprintln(r.stderr, err)
	default:
		r.log.Error(err.Error())
	}
}

// newHandler writes entries as runc's callers know them: the keys time, level
// and msg, the level in lower case, the time in RFC 3339.
func newHandler(w io.Writer, format string, level slog.Level) slog.Handler {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: shapeAttr}
	var h slog.Handler = slog.NewTextHandler(w, opts)
	if format == "json" {
		h = slog.NewJSONHandler(w, opts)
	}
	if level <= slog.LevelDebug {
		h = withPlace{h}
	}
	return h
}

// withPlace adds the place in the source code to each entry, under runc's keys.
type withPlace struct{ slog.Handler }

func (h withPlace) Handle(ctx context.Context, r slog.Record) error {
	if r.PC != 0 { // known
		place, _ := runtime.CallersFrames([]uintptr{r.PC}).Next()
		r.AddAttrs(slog.String("func", place.Function), slog.String("file", fmt.Sprintf("%s:%d", place.File, place.Line)))
	}
	return h.Handler.Handle(ctx, r)
}

func shapeAttr(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.TimeKey:
		return slog.String(a.Key, a.Value.Time().Format(time.RFC3339))
	case slog.LevelKey:
		level := strings.ToLower(a.Value.String())
		if level == "warn" {
			level = "warning"
		}
		return slog.String(a.Key, level)
	}
	return a
}

type logKey struct{}

func withLog(ctx context.Context, log *slog.Logger) context.Context {
	return context.WithValue(ctx, logKey{}, log)
}

// LogFrom is the logger that Prepare has put into every command's context.
func LogFrom(ctx context.Context) *slog.Logger {
	if log, ok := ctx.Value(logKey{}).(*slog.Logger); ok {
		return log
	}
	return slog.New(slog.DiscardHandler)
}

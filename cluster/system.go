package cluster

import (
	"context"
	"log/slog"

	"github.com/asynkron/protoactor-go/actor"
	cmap "github.com/orcaman/concurrent-map"
	"github.com/rs/zerolog"
)

// The runtime registers its actors in 1,024 maps of SHARD_COUNT parts each. With the
// default of 32, nearly each of ten thousand actors has a part of its own with room for
// eight, a quarter of a kilobyte.
func init() { cmap.SHARD_COUNT = 1 }

// newSystem starts protoactor's runtime. Its log records go to log.
func newSystem(log zerolog.Logger) *actor.ActorSystem {
	return actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		return slog.New(bridge{log})
	}))
}

// bridge writes the library's records to zerolog. Its info is our debug.
type bridge struct{ log zerolog.Logger }

func (b bridge) level(l slog.Level) zerolog.Level {
	switch {
	case l >= slog.LevelError:
		return zerolog.ErrorLevel
	case l >= slog.LevelWarn:
		return zerolog.WarnLevel
	default:
		return zerolog.DebugLevel
	}
}

func (b bridge) Enabled(_ context.Context, l slog.Level) bool {
	return b.log.GetLevel() <= b.level(l)
}

// Handle writes the message and the names of the attributes. Values may be messages,
// whose content must not be logged.
func (b bridge) Handle(_ context.Context, r slog.Record) error {
	names := zerolog.Arr()
	r.Attrs(func(a slog.Attr) bool {
		names.Str(a.Key)
		return true
	})
	b.log.WithLevel(b.level(r.Level)).Str("lib", "protoactor").Str("record", r.Message).Array("attrs", names).Msg("actor runtime")
	return nil
}

func (b bridge) WithAttrs([]slog.Attr) slog.Handler { return b }
func (b bridge) WithGroup(string) slog.Handler      { return b }

package cache

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Time-outs of one exchange with Redis.
const (
	dialTimeout = time.Second
	ioTimeout   = 2 * time.Second
)

// Cache is a connection to Redis.
type Cache struct {
	options redis.Options
	client  *redis.Client
}

func init() {
	redis.SetLogger(quiet{}) // failures are returned as errors
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// Open parses a URL (redis://, rediss:// or unix://). It does not connect: Redis may come up
// later. Its errors do not quote the URL.
func Open(rawURL string) (*Cache, error) {
	o, err := redis.ParseURL(rawURL)
	if err != nil {
		return nil, errors.New("not a URL of Redis: redis://[user:password@]host:port/number, rediss://… or unix:///path")
	}
	o.Protocol = 2
	o.PoolSize, o.MinIdleConns, o.PipelinePoolSize = 4, 0, -1
	o.MaxRetries = -1 // messages may be lost: nothing is sent twice
	o.DialTimeout, o.DialerRetries, o.ReadTimeout, o.WriteTimeout = dialTimeout, 1, ioTimeout, ioTimeout
	o.ContextTimeoutEnabled = true
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &Cache{options: *o, client: connect(*o)}, nil
}

// connect returns a client with its own copy of the options: the library writes into them.
func connect(o redis.Options) *redis.Client { return redis.NewClient(&o) }

// Ping reports whether Redis answers.
func (c *Cache) Ping(ctx context.Context) error {
	if err := c.client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("ping redis: %w", err)
	}
	return nil
}

// Close closes the connections.
func (c *Cache) Close() error { return c.client.Close() }

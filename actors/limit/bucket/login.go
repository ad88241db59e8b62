package bucket

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/quota"
)

// KindLogin is the kind of the buckets of logins.
const KindLogin = "login"

// LoginRate is the rate of login attempts per address and per e-mail: 20, and one more
// every 10 s (open-parts.md, Questions settled).
var LoginRate = PerSecond(20, 0.1)

// Logins limits login attempts over all nodes.
type Logins struct{ Node Node }

// Allow takes one token. Attempts are rare, so each asks the bucket's owner and leases no
// more than one token. If the owner does not answer, err is UNAVAILABLE.
func (l Logins) Allow(ctx context.Context, key string) (retry time.Duration, ok bool, err error) {
	sum := sha256.Sum256([]byte(key))
	at := cluster.Address{Kind: KindLogin, ID: id.UUID(sum[:16])}
	at.ID[6] = at.ID[6]&0x0f | 0x80 // version 8: the shard comes from the hash
	v, err := l.Node.Ask(ctx, at, Take{})
	if errors.Is(err, cluster.ErrLost) { // the token may be taken: the client tries again
		return 0, false, problem.Unavailable("The login was not answered.", time.Second)
	}
	if err != nil {
		return 0, false, err
	}
	leased, is := v.(Leased)
	if !is {
		return 0, false, fmt.Errorf("a bucket of logins answered %T", v)
	}
	quota.Note(ctx, LoginRate.quota(leased.Left))
	if leased.Granted == 0 {
		return leased.RetryAfter, false, nil
	}
	return 0, true, nil
}

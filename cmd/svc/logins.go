package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"agentsvc/actors/limit/bucket"
	"agentsvc/cluster"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// kindLogin is the kind of the buckets of logins (open-parts.md, Questions
// settled): 20 tries, one more every 10 s, per address and per e-mail.
const (
	kindLogin   = "login"
	loginTries  = 20
	loginRefill = 0.1
)

var loginRate = bucket.PerSecond(loginTries, loginRefill)

// logins finds users by e-mail and limits login attempts.
type logins struct {
	users *store.Directory
	node  *cluster.Node
}

func (l logins) Find(ctx context.Context, email string) ([]store.LoginUser, error) {
	return l.users.Find(ctx, email)
}

// Allow takes one token. Attempts are rare, so each asks the bucket's owner and leases no
// more than one token. If the owner does not answer, err is UNAVAILABLE.
func (l logins) Allow(ctx context.Context, key string) (retry time.Duration, ok bool, err error) {
	sum := sha256.Sum256([]byte(key))
	at := cluster.Address{Kind: kindLogin, ID: id.UUID(sum[:16])}
	at.ID[6] = at.ID[6]&0x0f | 0x80 // version 8: the shard comes from the hash
	v, err := l.node.Ask(ctx, at, bucket.Take{})
	if errors.Is(err, cluster.ErrLost) { // the token may be taken: the client tries again
		return 0, false, problem.Unavailable("The login was not answered.", time.Second)
	}
	if err != nil {
		return 0, false, err
	}
	leased, is := v.(bucket.Leased)
	if !is {
		return 0, false, fmt.Errorf("a bucket of logins answered %T", v)
	}
	bucket.NoteTake(ctx, loginRate, leased)
	if leased.Granted == 0 {
		return leased.RetryAfter, false, nil
	}
	return 0, true, nil
}

package platform

import (
	"context"
	"errors"
	"testing"
	"time"

	"agentsvc/schemas/apikey"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/transport/edge"
)

type keyring struct {
	tenant id.TenantID
	key    id.KeyID
	secret string
	reads  int
	live   bool
	during func()
	err    error
}

func newKeyring() *keyring {
	k := &keyring{tenant: id.TenantID{UUID: id.NewAnywhere()}, key: id.KeyID{UUID: id.NewAnywhere()}, live: true}
	k.secret = apikey.Mint(k.key)
	return k
}

func (k *keyring) find(_ context.Context, t id.TenantID, key id.KeyID) (apikey.Hash, bool, error) {
	k.reads++
	live := k.live
	if k.during != nil {
		k.during()
	}
	if k.err != nil || t != k.tenant || key != k.key || !live {
		return apikey.Hash{}, false, k.err
	}
	_, h, err := apikey.Parse(k.secret)
	return h, true, err
}

func (k *keyring) creds() edge.Credentials {
	return edge.Credentials{Bearer: k.secret, Tenant: k.tenant.String()}
}

func TestAKeyIsLookedUpOnce(t *testing.T) {
	t.Parallel()
	k := newKeyring()
	now := time.Unix(1000, 0)
	valid := true
	var touched []time.Time
	a := NewAuth(AuthConfig{Keys: k.find, Now: func() time.Time { return now }, Live: func() bool { return valid },
		Touch: func(_ id.TenantID, _ id.KeyID, at time.Time) { touched = append(touched, at) }})
	try := func(wantReads int, wantOK bool) {
		t.Helper()
		who, err := a.Authenticate(t.Context(), k.creds())
		if (err == nil) != wantOK || k.reads != wantReads {
			t.Fatalf("%v after %d reads; want %v after %d", err, k.reads, wantOK, wantReads)
		}
		if wantOK && (who.Role != lifecycle.RoleAdmin || who.Principal != "apikey:"+k.key.String() || who.Tenant != k.tenant || who.Key != k.key) {
			t.Fatalf("%+v", who)
		}
	}
	if a.Cached(k.creds()) {
		t.Fatal("cached before its first use")
	}
	try(1, true)
	try(1, true)
	if !a.Cached(k.creds()) || len(touched) != 2 {
		t.Fatal("not cached, or not touched at each use")
	}
	other := k.creds()
	other.Bearer = apikey.Mint(k.key)
	if a.Cached(other) {
		t.Fatal("another secret of a cached key is cached")
	}
	if _, err := a.Authenticate(t.Context(), other); err == nil || k.reads != 1 {
		t.Fatalf("another secret: %v after %d reads", err, k.reads)
	}
	now = now.Add(31 * time.Second)
	try(2, true)
	valid = false // the node's lease expired
	try(3, true)
	valid = true
	k.live = false
	try(3, true) // the cached key is valid until it is dropped
	a.Forget(k.tenant, k.key)
	try(4, false)
	try(5, false) // a refusal is not cached
	if len(touched) != 5 {
		t.Errorf("touched %d times", len(touched))
	}
}

// A revocation during a look-up: the look-up does not cache the old value.
func TestALookUpRacingWithARevocation(t *testing.T) {
	t.Parallel()
	k := newKeyring()
	a := NewAuth(AuthConfig{Keys: k.find})
	k.during = func() { // the row was read as live, and is revoked now
		k.during = nil
		k.live = false
		a.Forget(k.tenant, k.key)
	}
	if _, err := a.Authenticate(t.Context(), k.creds()); err == nil {
		t.Fatal("the key was accepted after its revocation")
	}
	if a.Cached(k.creds()) {
		t.Fatal("the old value is cached")
	}
}

func TestAnUnavailableDatabaseIsNotARefusal(t *testing.T) {
	t.Parallel()
	k := newKeyring()
	k.err = errors.New("down")
	if _, err := NewAuth(AuthConfig{Keys: k.find}).Authenticate(t.Context(), k.creds()); !errors.Is(err, k.err) {
		t.Fatalf("%v", err)
	}
}

func BenchmarkAuthenticateCached(b *testing.B) {
	k := newKeyring()
	a := NewAuth(AuthConfig{Keys: k.find})
	c := k.creds()
	if _, err := a.Authenticate(b.Context(), c); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.Authenticate(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
}

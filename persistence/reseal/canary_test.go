package reseal

import (
	"errors"
	"sync"
	"testing"

	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/vault"
)

// other is a vault that opens nothing of this database.
var other = vault.New(masterKey(9))

// back is the vault of a server that has taken the rotation back and knows the new key.
var back = vault.New(masterKey(1), masterKey(2))

func TestTheKeysOfADatabase(t *testing.T) {
	for name, c := range map[string]struct {
		given func(w *world) // what the database holds
		keys  *vault.Vault
		want  error
	}{
		"a new database takes any key":                      {func(*world) {}, other, nil},
		"the key of the canary":                             {func(w *world) { w.unlock(old) }, old, nil},
		"another key than the canary's":                     {func(w *world) { w.unlock(old) }, other, ErrKey},
		"a rotation: the canary's key is a previous one":    {func(w *world) { w.unlock(old) }, rotated, nil},
		"a rotation without the previous key":               {func(w *world) { w.unlock(old) }, fresh, ErrKey},
		"an earlier release's values, their key":            {func(w *world) { w.fill(w.tenant(), old) }, old, nil},
		"an earlier release's values, another key":          {func(w *world) { w.fill(w.tenant(), old) }, other, ErrKey},
		"an earlier release's values, one of them damaged":  {func(w *world) { w.fill(w.tenant(), old); w.exec("UPDATE model_providers SET credentials = 'x'") }, old, nil},
		"an earlier release's values, all of them damaged":  {func(w *world) { w.exec("UPDATE tenants SET name = 'x'"); w.damaged() }, old, ErrKey},
		"the canary decides, not a damaged value beside it": {func(w *world) { w.unlock(old); w.damaged() }, old, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c.given(w)
			if err := Check(t.Context(), w.pool, c.keys, columns); !errors.Is(err, c.want) {
				t.Errorf("Check: %v, want %v", err, c.want)
			}
			if err := Unlock(t.Context(), w.pool, c.keys, columns); !errors.Is(err, c.want) {
				t.Errorf("Unlock: %v, want %v", err, c.want)
			}
			if c.want == nil {
				if err := Check(t.Context(), w.pool, other, columns); c.keys != other && !errors.Is(err, ErrKey) {
					t.Errorf("another key afterwards: %v", err)
				}
			}
		})
	}
}

func (w *world) unlock(v *vault.Vault) {
	w.t.Helper()
	if err := Unlock(w.t.Context(), w.pool, v, columns); err != nil {
		w.t.Fatal(err)
	}
}

// damaged leaves a database whose only value opens under no key.
func (w *world) damaged() {
	w.exec("INSERT INTO model_providers (tenant_id, id, slug, kind, base_url, credentials) VALUES ($1, $1, 'damaged', 'openai', 'https://m.example', 'x')", w.tenant())
}

// Check looks, and changes nothing: a management command never decides which key
// a database has.
func TestCheckWritesNoCanary(t *testing.T) {
	w := newWorld(t)
	if err := Check(t.Context(), w.pool, old, columns); err != nil {
		t.Fatal(err)
	}
	w.unlock(other)
}

func TestLocked(t *testing.T) {
	w := newWorld(t)
	is := func(want bool) {
		t.Helper()
		if got, err := Locked(t.Context(), w.pool, columns); err != nil || got != want {
			t.Errorf("locked %v %v, want %v", got, err, want)
		}
	}
	is(false)
	w.damaged()
	is(true)
	w.exec("DELETE FROM model_providers")
	is(false)
	w.unlock(old)
	is(true)
}

// Nodes that start together with different keys: one key wins, on every one of them.
func TestNodesAgreeOnOneKey(t *testing.T) {
	w := newWorld(t)
	keys := []*vault.Vault{old, other}
	errs := make([]error, 16)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = Unlock(t.Context(), w.pool, keys[i%2], columns) })
	}
	all.Wait()
	won := [2]int{}
	for i, err := range errs {
		switch {
		case err == nil:
			won[i%2]++
		case !errors.Is(err, ErrKey):
			t.Error(err)
		}
	}
	if won != [2]int{8, 0} && won != [2]int{0, 8} {
		t.Errorf("the keys were accepted %v times", won)
	}
}

// A rotation takes the canary along: afterwards the previous key is not needed,
// and before it the report says that it is.
func TestResealMovesTheCanary(t *testing.T) {
	w := newWorld(t)
	w.unlock(old)
	if report, err := Run(t.Context(), w.pool, fresh, columns); err != nil || !report.PreviousNeeded {
		t.Errorf("without the previous key: %+v %v", report, err)
	}
	if report, err := Run(t.Context(), w.pool, rotated, columns); err != nil || report.PreviousNeeded {
		t.Errorf("%+v %v", report, err)
	}
	if err := Check(t.Context(), w.pool, fresh, columns); err != nil {
		t.Error(err)
	}
	if err := Check(t.Context(), w.pool, old, columns); !errors.Is(err, ErrKey) {
		t.Errorf("the former key alone: %v", err)
	}
}

func (w *world) begin(v *vault.Vault) {
	w.t.Helper()
	if err := Begin(w.t.Context(), w.pool, v); err != nil {
		w.t.Fatal(err)
	}
}

// keysAre checks which keys open the database.
func (w *world) keysAre(want map[*vault.Vault]error) {
	w.t.Helper()
	for v, want := range want {
		if err := Check(w.t.Context(), w.pool, v, columns); !errors.Is(err, want) {
			w.t.Errorf("%v: %v, want %v", v.Names(), err, want)
		}
	}
}

// From the moment at which a server seals under a new key until all is resealed, neither key alone opens the database:
// taking the rotation back half-way loses what was sealed since.
func TestARotationThatHasBegunNeedsBothKeys(t *testing.T) {
	w := newWorld(t)
	w.unlock(old)
	w.begin(old)
	w.unlock(rotated)
	w.keysAre(map[*vault.Vault]error{old: nil, rotated: nil, fresh: ErrKey}) // refused at its join, it would have sealed nothing
	w.begin(rotated)
	w.keysAre(map[*vault.Vault]error{old: ErrKey, fresh: ErrKey, rotated: nil, back: nil})
	if err := Begin(t.Context(), w.pool, old); !errors.Is(err, ErrKey) {
		t.Errorf("a server that was let in before: %v", err)
	}
	size := w.canarySize()
	w.begin(back)
	w.begin(rotated)
	if got := w.canarySize(); got != size {
		t.Errorf("the canary has grown from %d to %d bytes although both keys were known", size, got)
	}
	w.run(back)
	w.keysAre(map[*vault.Vault]error{old: nil, fresh: ErrKey, back: nil})
	w.begin(rotated)
	w.run(rotated)
	w.keysAre(map[*vault.Vault]error{old: ErrKey, fresh: nil})
}

func (w *world) canarySize() (n int) {
	w.t.Helper()
	if err := w.pool.QueryRow(w.t.Context(), "SELECT octet_length(value) FROM canary").Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// Servers that begin at the same time with either key current leave a canary that needs both.
func TestServersThatBeginTogetherAreAllRecorded(t *testing.T) {
	w := newWorld(t)
	w.unlock(other)
	all := []*vault.Vault{vault.New(masterKey(1), masterKey(2), masterKey(9)), vault.New(masterKey(2), masterKey(1), masterKey(9))}
	errs := make([]error, 8)
	var wait sync.WaitGroup
	for i := range errs {
		wait.Go(func() { errs[i] = Begin(t.Context(), w.pool, all[i%2]) })
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	w.keysAre(map[*vault.Vault]error{all[0]: nil, vault.New(masterKey(1), masterKey(9)): ErrKey, vault.New(masterKey(2), masterKey(9)): ErrKey})
}

// A running server that seals under the former key makes values that need it, also after a pass that found none.
func TestAKeyIsNeededWhileAServerSealsUnderIt(t *testing.T) {
	w := newWorld(t)
	w.unlock(old)
	w.exec("UPDATE members SET address = 'former:1', keys = $2 WHERE id = $1", pgtest.Member(t, w.pool), back.Names())
	if report := w.run(rotated); !report.PreviousNeeded {
		t.Errorf("%+v", report)
	}
	w.keysAre(map[*vault.Vault]error{old: nil, fresh: ErrKey})
	w.exec("DELETE FROM members")
	if report := w.run(rotated); report.PreviousNeeded {
		t.Errorf("%+v", report)
	}
	w.keysAre(map[*vault.Vault]error{old: ErrKey, fresh: nil})
}

func TestSampleOpensOneValueOfEachColumn(t *testing.T) {
	w := newWorld(t)
	w.fill(w.tenant(), old)
	w.exec("UPDATE connections SET credentials = 'x'")
	w.exec("DELETE FROM webhooks")
	opened, err := Sample(t.Context(), w.pool, old, columns)
	if err != nil || len(opened) != len(columns) {
		t.Fatalf("%v %v", opened, err)
	}
	for _, o := range opened {
		found, bad := o.Table != "webhooks", o.Table == "connections"
		if o.Found != found || errors.Is(o.Err, vault.ErrOpen) != bad {
			t.Errorf("%+v", o)
		}
	}
}

// A connection or a provider that lost its credential with its old address holds
// no sealed value: neither the sample nor a pass takes the empty one for damage.
func TestADroppedCredentialIsNoDamage(t *testing.T) {
	w := newWorld(t)
	w.fill(w.tenant(), old)
	w.exec("UPDATE connections SET credentials = ''")
	w.exec("UPDATE model_providers SET credentials = ''")
	opened, err := Sample(t.Context(), w.pool, old, columns)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range opened {
		if dropped := o.Table == "connections" || o.Table == "model_providers"; o.Err != nil || o.Found == dropped {
			t.Errorf("%+v", o)
		}
	}
	report, err := Run(t.Context(), w.pool, old, columns)
	if err != nil || report.Sum(func(c Count) int { return c.Unreadable }) != 0 {
		t.Errorf("%+v, %v", report, err)
	}
}

package main

import (
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"agentsvc/actors/limit/bucket"
)

func loaded(t *testing.T, env map[string]string, args ...string) (Config, error) {
	t.Helper()
	var c Config
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.bind(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	err := c.load(fs, func(k string) (string, bool) { v, ok := env[k]; return v, ok })
	return c, err
}

func TestDefaults(t *testing.T) {
	c, err := loaded(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Addr != "127.0.0.1:8080" || c.PublicURL != "http://127.0.0.1:8080" || c.Production || c.DataDir != "./data" ||
		c.RateCapacity != 120 || c.RateRefill != 20 || c.Heartbeat != 15*time.Second || c.RunConcurrency != 0 || c.Lease != 3*time.Second ||
		c.DrainTimeout != 30*time.Second {
		t.Errorf("%+v", c)
	}
}

func TestFlagGoesBeforeEnvironmentBeforeDefault(t *testing.T) {
	env := map[string]string{"SVC_ADDR": "127.0.0.1:1", "SVC_SSE_HEARTBEAT": "2s"}
	c, err := loaded(t, env, "--addr", "127.0.0.1:2")
	if err != nil {
		t.Fatal(err)
	}
	if c.Addr != "127.0.0.1:2" || c.Heartbeat != 2*time.Second {
		t.Errorf("%+v", c)
	}
}

func TestWrongValuesAreNamedTogetherAndSecretsAreNotShown(t *testing.T) {
	_, err := loaded(t, map[string]string{"SVC_ADDR": "nowhere", "SVC_RATE_CAPACITY": "0", "SVC_MASTER_KEY": "hunter2",
		"SVC_OUTBOUND_ALLOW": "localhost", "SVC_ENV": "prod", "SVC_SSE_HEARTBEAT": "1us", "SVC_RUN_CONCURRENCY": "-1", "SVC_CLUSTER_ADDR": "x",
		"SVC_CLUSTER_LEASE": "2ns", "SVC_DRAIN_TIMEOUT": "0s", "SVC_WEBHOOK_TIMEOUT": "301s", "SVC_WEBHOOK_BACKOFF": "0s",
		"SVC_DATABASE_URL": "postgres://svc:hunter2/x@db/svc", "SVC_METRICS_ADDR": "127.0.0.1:99999", "SVC_BROWSER_CDP": "nonsense", "SVC_BROWSER_PROXY_ADDR": "10.0.0.11:9000"})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, name := range []string{"SVC_ADDR", "SVC_RATE_CAPACITY", "SVC_MASTER_KEY", "SVC_OUTBOUND_ALLOW", "SVC_ENV", "SVC_SSE_HEARTBEAT", "SVC_RUN_CONCURRENCY", "SVC_CLUSTER_ADDR", "SVC_CLUSTER_LEASE", "SVC_DRAIN_TIMEOUT", "SVC_WEBHOOK_TIMEOUT", "SVC_WEBHOOK_BACKOFF",
		"SVC_DATABASE_URL", "SVC_METRICS_ADDR", "SVC_BROWSER_CDP", "SVC_BROWSER_PROXY_ADDR"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in: %v", name, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a secret is shown: %v", err)
	}
}

// In a URL that cannot be read the password may be anywhere, so no part of it is shown; what is missing on the machine is.
func TestADatabaseURLThatCannotBeReadIsAWrongValue(t *testing.T) {
	for url, says := range map[string]string{
		"db.internal": "must be a Postgres URL", "postgres://svc:hunter2/x@db/svc": "percent-encoded", "postgres://svc:%hunter2@db/svc": "percent-encoded",
		"postgres://svc:hunter2@db/svc?sslmode=sometimes":                        "must be a Postgres URL",
		"postgres://svc:hunter2@db/svc?sslmode=verify-full&sslrootcert=/nowhere": "/nowhere",
	} {
		if _, err := loaded(t, map[string]string{"SVC_DATABASE_URL": url}); err == nil || !strings.Contains(err.Error(), "SVC_DATABASE_URL: ") || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, url := range []string{"postgres://svc:x@db1,db2/svc?target_session_attrs=read-write", "postgresql:///svc?host=/run/postgresql", "host=/run/postgresql dbname=svc"} {
		if c, err := loaded(t, map[string]string{"SVC_DATABASE_URL": url}); err != nil || c.DatabaseURL != url {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestTheAddressesOfABrowserElsewhere(t *testing.T) {
	for _, addr := range []string{"10.0.0.11", "::1", "node1.internal"} {
		if c, err := loaded(t, map[string]string{"SVC_BROWSER_PROXY_ADDR": addr}); err != nil || c.Browser.Proxy != addr {
			t.Errorf("%s: %v", addr, err)
		}
	}
	for _, cdp := range []string{"http://browser.internal:9222", "ws://10.0.0.9:9222/devtools/browser/1"} {
		if c, err := loaded(t, map[string]string{"SVC_BROWSER_CDP": cdp}); err != nil || c.Browser.CDP != cdp {
			t.Errorf("%s: %v", cdp, err)
		}
	}
}

// A bucket that takes longer to fill than its sums can count would have no token ever. The greatest that is accepted has.
func TestTheBucketOfTheSettingsHasTokens(t *testing.T) {
	for _, wrong := range []map[string]string{
		{"SVC_RATE_CAPACITY": "1000000000000"}, {"SVC_RATE_CAPACITY": "1000000001"},
		{"SVC_RATE_CAPACITY": "1000000000", "SVC_RATE_REFILL": "3"}, {"SVC_RATE_REFILL": "0.0000003"}, {"SVC_RATE_REFILL": "1e-300"},
	} {
		_, err := loaded(t, wrong)
		for name := range wrong {
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%v: %v", wrong, err)
			}
		}
	}
	for _, greatest := range []map[string]string{
		{"SVC_RATE_CAPACITY": "1000000000"}, {"SVC_RATE_CAPACITY": "1000000000", "SVC_RATE_REFILL": "1000000000"}, {"SVC_RATE_CAPACITY": "1000000000", "SVC_RATE_REFILL": "3.2"},
	} {
		c, err := loaded(t, greatest)
		if err != nil {
			t.Errorf("%v: %v", greatest, err)
		}
		if r := bucket.PerSecond(int64(c.RateCapacity), c.RateRefill); r.Every <= 0 || r.Every > math.MaxInt64/time.Duration(r.Capacity) {
			t.Errorf("%v: %+v", greatest, r)
		}
	}
}

func TestAnEmptyVariableIsAnUnsetOne(t *testing.T) {
	empty := map[string]string{"SVC_CLUSTER_ADDR": ""}
	for _, s := range (&Config{}).settings() {
		empty[s.env] = ""
	}
	if _, err := loaded(t, empty); err != nil {
		t.Error(err)
	}
}

// An empty flag is the default, as an unset variable is, and takes precedence over the environment.
func TestAnEmptyFlagIsTheDefault(t *testing.T) {
	want, err := loaded(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	var args []string
	for _, s := range (&Config{}).settings() {
		args = append(args, "--"+s.flag()+"=")
	}
	env := map[string]string{"SVC_ADDR": "127.0.0.1:1", "SVC_METRICS_ADDR": "127.0.0.1:2", "SVC_DRAIN_TIMEOUT": "1s", "SVC_LOG_LEVEL": "error"}
	got, err := loaded(t, env, args...)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n%+v, want\n%+v", err, got, want)
	}
}

func TestAnAddressHasAPort(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:", ":", "127.0.0.1"} {
		for _, name := range []string{"SVC_ADDR", "SVC_METRICS_ADDR"} {
			if _, err := loaded(t, map[string]string{name: addr}); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s=%s: %v", name, addr, err)
			}
		}
	}
	for _, addr := range []string{"127.0.0.1:0", ":8080", "[::1]:8080"} {
		if c, err := loaded(t, map[string]string{"SVC_ADDR": addr}); err != nil || c.Addr != addr {
			t.Errorf("%s: %q, %v", addr, c.Addr, err)
		}
	}
}

// A level is one of those that the guide names: the library's others would silence errors.
func TestALevelOfTheLogIsOneThatIsDocumented(t *testing.T) {
	for _, v := range []string{"trace", "debug", "info", "warn", "error"} {
		if c, err := loaded(t, map[string]string{"SVC_LOG_LEVEL": v}); err != nil || c.LogLevel.String() != v {
			t.Errorf("%s: %s, %v", v, c.LogLevel, err)
		}
	}
	for _, v := range []string{"disabled", "fatal", "panic", "7", "-1", "INFO", "inof"} {
		if _, err := loaded(t, map[string]string{"SVC_LOG_LEVEL": v}); err == nil || !strings.Contains(err.Error(), "SVC_LOG_LEVEL: "+v+": must be one of trace debug info warn error") {
			t.Errorf("%s: %v", v, err)
		}
	}
}

// What the vault does not take as a key is wrong configuration, and is not met only when the vault is opened.
func TestAKeyThatTheVaultDoesNotTakeIsAWrongValue(t *testing.T) {
	zero, loose := strings.Repeat("A", 43)+"=", strings.Repeat("A", 42)+"B="
	for _, name := range []string{"SVC_MASTER_KEY", "SVC_MASTER_KEY_PREVIOUS"} {
		for _, key := range []string{zero, loose, "c2hvcnQ="} {
			if _, err := loaded(t, map[string]string{name: key}); err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), key) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestProductionNeedsAMasterKey(t *testing.T) {
	if _, err := loaded(t, map[string]string{"SVC_ENV": "production"}); err == nil || !strings.Contains(err.Error(), "SVC_MASTER_KEY") {
		t.Errorf("err = %v", err)
	}
}

func TestAClusterNodeNamesWhatItLacks(t *testing.T) {
	whole := map[string]string{"SVC_CLUSTER_ADDR": "127.0.0.1:7000", "SVC_CLUSTER_SECRET": strings.Repeat("s", 32), "SVC_DATABASE_URL": "postgres://db/svc",
		"SVC_REDIS_URL": "redis://:hunter2@127.0.0.1:6379/0", "SVC_MASTER_KEY": "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="}
	c, err := loaded(t, whole)
	if err != nil || c.ClusterAddr != "127.0.0.1:7000" || c.RedisURL != whole["SVC_REDIS_URL"] {
		t.Fatalf("%+v, %v", c, err)
	}
	for name := range whole {
		if name == "SVC_CLUSTER_ADDR" {
			continue
		}
		env := maps.Clone(whole)
		delete(env, name)
		if _, err := loaded(t, env); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	for _, wrong := range [][2]string{
		{"SVC_CLUSTER_SECRET", strings.Repeat("s", 31)}, {"SVC_REDIS_URL", "http://:hunter2@redis"}, {"SVC_CLUSTER_ADDR", "here"},
		// What peers cannot dial as it stands.
		{"SVC_CLUSTER_ADDR", ":7000"}, {"SVC_CLUSTER_ADDR", "0.0.0.0:7000"}, {"SVC_CLUSTER_ADDR", "[::]:7000"}, {"SVC_CLUSTER_ADDR", "10.0.0.1:0"}, {"SVC_CLUSTER_ADDR", "10.0.0.1:"},
	} {
		name, value := wrong[0], wrong[1]
		env := maps.Clone(whole)
		env[name] = value
		if _, err := loaded(t, env); err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "sss") {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
}

// What svc dev was told by flags its nodes are told by their environment.
func TestFlagsAsEnvironment(t *testing.T) {
	var c Config
	fs := pflag.NewFlagSet("dev", pflag.ContinueOnError)
	c.bind(fs)
	if err := fs.Parse([]string{"--rate-capacity", "7", "--cluster-lease=1s", "--openai-base-url", "http://127.0.0.1:1", "--metrics-addr="}); err != nil {
		t.Fatal(err)
	}
	got := c.given(fs)
	slices.Sort(got)
	if want := []string{"OPENAI_BASE_URL=http://127.0.0.1:1", "SVC_CLUSTER_LEASE=1s", "SVC_METRICS_ADDR=", "SVC_RATE_CAPACITY=7"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestUnknownVariablesAreNamed(t *testing.T) {
	for name, want := range map[string]string{
		"SVC_DATABSE_URL":               "SVC_DATABASE_URL",
		"SVC_TRUSTED_PROXY":             "SVC_TRUSTED_PROXIES",
		"SVC_PUBLICURL":                 "SVC_PUBLIC_URL",
		"SVC_RATE_LIMIT_PER_HOUR_LIMIT": "",
		"SVC_":                          "",
		"SVC_PORT":                      "",
	} {
		got := strangers([]string{"PATH=/bin", "SVC_ADDR=x", "SVC_URL=x", name + "=value"})
		if len(got) != 1 || !strings.HasPrefix(got[0], name+" is not known") || strings.Contains(got[0], "did you mean "+want+"?") != (want != "") || strings.Contains(got[0], "=value") {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := strangers([]string{"SVC_SERVICE_HOST=10.0.0.1", "SVC_SERVICE_PORT_HTTP=80", "SVC_PORT=tcp://10.0.0.1:80", "SVC_PORT_80_TCP_ADDR=10.0.0.1", "svc_x=1", "MY_SVC_X=1"}); len(got) != 0 {
		t.Errorf("a scheduler's variables: %q", got)
	}
}

// Links and scripts carry the public address: in production it must be one that
// clients can call.
func TestThePublicAddress(t *testing.T) {
	key := "SVC_MASTER_KEY=" + strings.Repeat("AQEB", 10) + "AQE="
	for name, row := range map[string]struct {
		env  []string
		want string // what the error names; empty: accepted
	}{
		"development has a default":                      {nil, ""},
		"production has none":                            {[]string{"SVC_ENV=production", key}, "SVC_PUBLIC_URL"},
		"production, every address":                      {[]string{"SVC_ENV=production", key, "SVC_PUBLIC_URL=http://0.0.0.0:8080"}, "SVC_PUBLIC_URL"},
		"production, every address of version 6":         {[]string{"SVC_ENV=production", key, "SVC_PUBLIC_URL=http://[::]:8080"}, "SVC_PUBLIC_URL"},
		"production, every address of version 6, mapped": {[]string{"SVC_ENV=production", key, "SVC_PUBLIC_URL=http://[::ffff:0.0.0.0]:8080"}, "SVC_PUBLIC_URL"},
		"production, no host":                            {[]string{"SVC_ENV=production", key, "SVC_PUBLIC_URL=https://:8080"}, "SVC_PUBLIC_URL"},
		"production, zero":                               {[]string{"SVC_ENV=production", key, "SVC_PUBLIC_URL=http://0:8080"}, "SVC_PUBLIC_URL"},
		"production, zero in hexadecimal":                {[]string{"SVC_ENV=production", key, "SVC_PUBLIC_URL=https://0x0"}, "SVC_PUBLIC_URL"},
		"production, every address and a dot":            {[]string{"SVC_ENV=production", key, "SVC_PUBLIC_URL=http://0.0.0.0.:80"}, "SVC_PUBLIC_URL"},
		"production, a star":                             {[]string{"SVC_ENV=production", key, "SVC_PUBLIC_URL=http://*:8080"}, "SVC_PUBLIC_URL"},
		"production, a query":                            {[]string{"SVC_ENV=production", key, "SVC_PUBLIC_URL=https://a.example.com?x=1"}, "SVC_PUBLIC_URL"},
		"production, a fragment":                         {[]string{"SVC_ENV=production", key, "SVC_PUBLIC_URL=https://a.example.com#x"}, "SVC_PUBLIC_URL"},
		"production, a user":                             {[]string{"SVC_ENV=production", key, "SVC_PUBLIC_URL=https://u:p@a.example.com"}, "SVC_PUBLIC_URL"},
		"production, an IPv6 address":                    {[]string{"SVC_ENV=production", key, "SVC_PUBLIC_URL=https://[2001:db8::1]:8443"}, ""},
		"production, an address":                         {[]string{"SVC_ENV=production", key, "SVC_PUBLIC_URL=https://agents.example.com"}, ""},
		"development, every address":                     {[]string{"SVC_PUBLIC_URL=http://0.0.0.0:8080"}, "SVC_PUBLIC_URL"},
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{}
			for _, e := range row.env {
				k, v, _ := strings.Cut(e, "=")
				env[k] = v
			}
			c, err := loaded(t, env)
			if err == nil {
				err = c.reachable()
			}
			if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
				t.Errorf("%v", err)
			}
		})
	}
	// What clients are shown by default is an address that they can call.
	for addr, want := range map[string]string{"0.0.0.0:81": "http://127.0.0.1:81", "[::]:81": "http://127.0.0.1:81", ":81": "http://127.0.0.1:81", "10.1.2.3:81": "http://10.1.2.3:81"} {
		if c, err := loaded(t, map[string]string{"SVC_ADDR": addr}); err != nil || c.PublicURL != want {
			t.Errorf("%s: %s %v", addr, c.PublicURL, err)
		}
	}
}

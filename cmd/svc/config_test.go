package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
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
		c.RateCapacity != 120 || c.RateRefill != 20 || c.Heartbeat != 15*time.Second || c.RunConcurrency != 0 || c.Lease != 3*time.Second {
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
		"SVC_OUTBOUND_ALLOW": "localhost", "SVC_ENV": "prod", "SVC_SSE_HEARTBEAT": "-1s", "SVC_RUN_CONCURRENCY": "-1", "SVC_CLUSTER_ADDR": "x"})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, name := range []string{"SVC_ADDR", "SVC_RATE_CAPACITY", "SVC_MASTER_KEY", "SVC_OUTBOUND_ALLOW", "SVC_ENV", "SVC_SSE_HEARTBEAT", "SVC_RUN_CONCURRENCY", "SVC_CLUSTER_ADDR"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in: %v", name, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a secret is shown: %v", err)
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

func TestProductionNeedsAMasterKey(t *testing.T) {
	if _, err := loaded(t, map[string]string{"SVC_ENV": "production"}); err == nil || !strings.Contains(err.Error(), "SVC_MASTER_KEY") {
		t.Errorf("err = %v", err)
	}
}

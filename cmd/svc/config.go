package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"agentsvc/persistence/blob"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/vault"
)

// Config holds the settings of the environment and of the flags of `svc serve`
// (open-parts.md, Configuration). Only this file reads them for a node. Commands that run at a person's terminal read
// what concerns that terminal themselves: the client its address and key, svc skills record the display and the browser
// of the person's machine.
type Config struct {
	Addr           string
	PublicURL      string
	Production     bool
	DataDir        string
	DatabaseURL    string
	Files          blob.Location // set by load
	MasterKey      string
	MasterPrevious []string
	OutboundAllow  []netip.Prefix
	TrustedProxies []netip.Prefix
	AddressConns   int
	RateCapacity   int
	RateRefill     float64
	Heartbeat      time.Duration
	RunConcurrency int
	TenantStreams  int
	Escalation     float64
	ToolTimeout    time.Duration
	ToolsTTL       time.Duration
	EmbedTokenTTL  time.Duration
	WebhookBackoff time.Duration
	WebhookTimeout time.Duration
	StdioServers   map[string][]string
	MetricsAddr    string
	ClusterAddr    string
	ClusterSecret  string
	RedisURL       string
	Lease          time.Duration
	DrainTimeout   time.Duration
	LogLevel       zerolog.Level
	Browser        Browsers
	LogFormat      string

	filesURL string
	aws      blob.Credentials

	TraceURL                   string
	OfficeDriveURL             string
	CloudDriveURL              string
	OpenAIKey, OpenAIURL       string
	AnthropicKey, AnthropicURL string
}

// Browsers are the settings of browser skills.
type Browsers struct {
	Path, CDP, Proxy, Driver string
	NoSandbox                bool
	StepTimeout, JobTimeout  time.Duration
}

type setting struct {
	env, value, usage string
	secret            bool
	set               func(string) error
}

func (s setting) flag() string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(s.env, "SVC_")), "_", "-")
}

func (c *Config) settings() []setting {
	return []setting{
		{env: "SVC_ADDR", value: "127.0.0.1:8080", usage: "address of the HTTP edge", set: hostPort(&c.Addr)},
		{env: "SVC_PUBLIC_URL", usage: "base URL that clients use (default in development: http:// and the address)", set: baseURL(&c.PublicURL)},
		{env: "SVC_ENV", value: "development", usage: "development or production", set: c.setEnv},
		{env: "SVC_DATA_DIR", value: "./data", usage: "private Postgres, uploads, generated development secrets", set: text(&c.DataDir)},
		{env: "SVC_FILES_URL", usage: "store of uploaded files: file:///dir, or s3://bucket/prefix?endpoint=https://host&region=name; empty: blobs in the data directory", set: text(&c.filesURL), secret: true},
		{env: "SVC_DATABASE_URL", usage: "a Postgres URL; empty starts a private Postgres in the data directory", set: databaseURL(&c.DatabaseURL), secret: true},
		{env: "SVC_MASTER_KEY", usage: "32 bytes in base64; generated in development", set: key32(&c.MasterKey), secret: true},
		{env: "SVC_MASTER_KEY_PREVIOUS", usage: "comma-separated keys that still decrypt", set: c.setPrevious, secret: true},
		{env: "SVC_OUTBOUND_ALLOW", usage: "comma-separated CIDRs that outbound calls may reach in addition to public addresses", set: prefixes(&c.OutboundAllow)},
		{env: "SVC_TRUSTED_PROXIES", usage: "comma-separated CIDRs whose X-Forwarded-For is trusted", set: prefixes(&c.TrustedProxies)},
		{env: "SVC_CONNS_PER_ADDRESS", value: "1024", usage: "connections per client address, event streams included, trusted proxies excepted; 0: as many as the node has free", set: count(&c.AddressConns)},
		{env: "SVC_RATE_CAPACITY", value: "120", usage: "capacity of the platform token bucket", set: capacity(&c.RateCapacity)},
		{env: "SVC_RATE_REFILL", value: "20", usage: "tokens per second that refill it", set: rate(&c.RateRefill)},
		{env: "SVC_SSE_HEARTBEAT", value: "15s", usage: "heartbeat of event streams, at least 10ms, and below 45s for browsers", set: atLeast(minHeartbeat, &c.Heartbeat)},
		{env: "SVC_RUN_CONCURRENCY", value: "0", usage: "running runs per tenant, 0 is no limit", set: count(&c.RunConcurrency)},
		{env: "SVC_TENANT_STREAMS", value: "0", usage: "open event streams per tenant over all nodes, 0 is no limit", set: count(&c.TenantStreams)},
		{env: "SVC_ESCALATION_FRACTION", value: "0.5", usage: "fraction of an approval's time after which it escalates, above 0 and below 1", set: fraction(&c.Escalation)},
		{env: "SVC_TOOL_TIMEOUT", value: "60s", usage: "deadline of one tool call", set: duration(&c.ToolTimeout)},
		{env: "SVC_TOOLS_TTL", value: "5m", usage: "life of a cached list of tools and of an idle client of a tool server", set: duration(&c.ToolsTTL)},
		{env: "SVC_WEBHOOK_BACKOFF", value: "5s", usage: "pause after a webhook delivery's first failed attempt, doubled after each further one, at most 1h", set: atMost(time.Hour, &c.WebhookBackoff)},
		{env: "SVC_WEBHOOK_TIMEOUT", value: "10s", usage: "deadline of one attempt of a webhook delivery, at most 5m", set: atMost(5*time.Minute, &c.WebhookTimeout)},
		{env: "SVC_EMBED_TOKEN_TTL", value: "1h", usage: "life of an embed session token, at most 24h", set: atMost(24*time.Hour, &c.EmbedTokenTTL)},
		{env: "SVC_STDIO_SERVERS", usage: "comma-separated name=command of the stdio tool servers that tenants may use", set: commands(&c.StdioServers)},
		{env: "SVC_BROWSER", usage: "path of a Chromium for browser skills (default found on the machine)", set: text(&c.Browser.Path)},
		{env: "SVC_BROWSER_CDP", usage: "URL of a Chromium elsewhere, over CDP", set: cdpURL(&c.Browser.CDP), secret: true},
		{env: "SVC_BROWSER_PROXY_ADDR", usage: "address of this machine, without a port, at which a Chromium elsewhere reaches the proxies of this node (default loopback)", set: host(&c.Browser.Proxy)},
		{env: "SVC_BROWSER_NO_SANDBOX", value: "false", usage: "true: in production too, Chromium may run without its own sandbox where the machine allows none", set: truth(&c.Browser.NoSandbox)},
		{env: "SVC_SKILL_STEP_TIMEOUT", value: "10s", usage: "deadline of one step of a browser skill, at most 2m", set: atMost(2*time.Minute, &c.Browser.StepTimeout)},
		{env: "SVC_SKILL_TIMEOUT", value: "2m", usage: "deadline of a whole prepare or commit of a browser skill, at most 30m", set: atMost(30*time.Minute, &c.Browser.JobTimeout)},
		{env: "PLAYWRIGHT_DRIVER_PATH", usage: "directory of the Playwright driver (default found on the machine)", set: text(&c.Browser.Driver)},
		{env: "SVC_OFFICE_DRIVE_URL", usage: "Microsoft Graph for knowledge sources, with /v1.0 (default the vendor's)", set: baseURL(&c.OfficeDriveURL)},
		{env: "SVC_CLOUD_DRIVE_URL", usage: "Google Drive for knowledge sources, with /drive/v3 (default the vendor's)", set: baseURL(&c.CloudDriveURL)},
		{env: "SVC_METRICS_ADDR", usage: "address of a separate listener for /metrics", set: hostPort(&c.MetricsAddr)},
		{env: "SVC_CLUSTER_ADDR", usage: "address at which the other nodes reach this one; empty: a single node", set: peerAddr(&c.ClusterAddr)},
		{env: "SVC_CLUSTER_SECRET", usage: "secret that the nodes of a cluster share, at least 32 characters", set: longSecret(&c.ClusterSecret), secret: true},
		{env: "SVC_REDIS_URL", usage: "Redis for messages between nodes that may be lost; required in a cluster", set: redisURL(&c.RedisURL), secret: true},
		{env: "SVC_CLUSTER_LEASE", value: "3s", usage: "a node's lease, at least 100ms", set: atLeast(minLease, &c.Lease)},
		{env: "SVC_DRAIN_TIMEOUT", value: "30s", usage: "time in which a node that stops finishes model turns and tool calls in flight, at most 1h", set: atMost(time.Hour, &c.DrainTimeout)},
		{env: "SVC_LOG_LEVEL", value: "info", usage: "trace, debug, info, warn or error", set: c.setLevel},
		{env: "SVC_LOG_FORMAT", usage: "console or json (default console on a terminal)", set: oneOf(&c.LogFormat, "", "console", "json")},
		{env: "OTEL_EXPORTER_OTLP_ENDPOINT", usage: "base URL of an OpenTelemetry collector that gets traces, by OTLP over HTTP; empty: no traces", set: baseURL(&c.TraceURL), secret: true},
		{env: "AWS_ACCESS_KEY_ID", usage: "access key id of the store of files, unless its URL has one", set: text(&c.aws.KeyID), secret: true},
		{env: "AWS_SECRET_ACCESS_KEY", usage: "its secret", set: text(&c.aws.Secret), secret: true},
		{env: "AWS_SESSION_TOKEN", usage: "its session token, if the credentials are temporary", set: text(&c.aws.Session), secret: true},
		{env: "OPENAI_API_KEY", usage: "deployment-wide OpenAI-compatible provider", set: text(&c.OpenAIKey), secret: true},
		{env: "OPENAI_BASE_URL", usage: "its base URL (default the vendor's)", set: baseURL(&c.OpenAIURL)},
		{env: "ANTHROPIC_API_KEY", usage: "deployment-wide Anthropic provider", set: text(&c.AnthropicKey), secret: true},
		{env: "ANTHROPIC_BASE_URL", usage: "its base URL (default the vendor's)", set: baseURL(&c.AnthropicURL)},
	}
}

// bind defines a flag for every setting: its name in lower case with dashes.
func (c *Config) bind(fs *pflag.FlagSet) {
	for _, s := range c.settings() {
		shown := s.value
		fs.String(s.flag(), shown, fmt.Sprintf("%s (%s)", s.usage, s.env))
	}
}

// load reads the settings. A flag overrides the environment, which overrides the default.
// The error names every wrong value.
func (c *Config) load(fs *pflag.FlagSet, env func(string) (string, bool)) error {
	var wrong []error
	for _, s := range c.settings() {
		v, from := s.value, s.env
		if e, ok := env(s.env); ok && e != "" {
			v = e
		}
		if f := fs.Lookup(s.flag()); f != nil && f.Changed {
			v, from = f.Value.String(), "--"+s.flag()
		}
		if v == "" { // an empty flag is the default, whatever the environment says
			v = s.value
		}
		if v == "" {
			continue
		}
		if err := s.set(v); err != nil {
			if s.secret {
				v = "the given value"
			}
			wrong = append(wrong, fmt.Errorf("%s: %s: %w", from, v, err))
		}
	}
	var err error
	if c.Files, err = c.location("SVC_FILES_URL", c.filesURL); err != nil {
		wrong = append(wrong, err)
	}
	if c.RateRefill > 0 && float64(c.RateCapacity) > longestFill.Seconds()*c.RateRefill {
		wrong = append(wrong, fmt.Errorf("SVC_RATE_CAPACITY, SVC_RATE_REFILL: an empty bucket of %d tokens would be full after more than ten years at %g a second: lower the one or raise the other", c.RateCapacity, c.RateRefill))
	}
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	if err := c.clusterNeeds(); err != nil {
		return err
	}
	if c.PublicURL == "" && !c.Production {
		c.PublicURL = "http://" + dialable(c.Addr)
	}
	if c.Production && c.MasterKey == "" {
		return errors.New("SVC_MASTER_KEY: production needs one; make it with: openssl rand -base64 32")
	}
	return nil
}

// location reads the URL of a store of files; empty is the directory of a data directory.
func (c *Config) location(from, url string) (blob.Location, error) {
	if url == "" {
		return blob.Location{Dir: filepath.Join(absolute(c.DataDir), "blobs")}, nil
	}
	l, err := blob.ParseLocation(url, c.aws)
	if err != nil {
		return l, fmt.Errorf("%s: %w", from, err)
	}
	return l, nil
}

// reachable returns an error if clients cannot use the public address: hook and
// login links, cookies and the widget's script carry it. Production has no default.
func (c *Config) reachable() error {
	if c.PublicURL == "" {
		return errors.New("SVC_PUBLIC_URL: production needs the address that clients use, such as https://agents.example.com")
	}
	u, err := url.Parse(c.PublicURL)
	if err != nil {
		return fmt.Errorf("SVC_PUBLIC_URL: %w", err)
	}
	if !callable(u.Hostname()) {
		return fmt.Errorf("SVC_PUBLIC_URL: %s is no address, or an address to listen on, and no client can call it: set the address that clients use, such as https://agents.example.com", c.PublicURL)
	}
	return nil
}

// hostName matches a name that clients can look up: labels of letters, digits and inner
// dashes. The last label is not a number, which would be an address in an old form.
var hostName = regexp.MustCompile(`^(?i)([a-z0-9_]([a-z0-9_-]*[a-z0-9])?\.)*[a-z]([a-z0-9-]*[a-z0-9])?\.?$`)

// callable reports whether a client can call a host: a name, or an address other than the
// unspecified one.
func callable(host string) bool {
	if ip, err := netip.ParseAddr(strings.TrimSuffix(host, ".")); err == nil {
		return !ip.Unmap().IsUnspecified()
	}
	return hostName.MatchString(host)
}

// onlyLocal reports whether the public address is a loopback address.
func (c *Config) onlyLocal() bool {
	u, err := url.Parse(c.PublicURL)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// given returns the settings given by flags, in the form of the environment.
func (c *Config) given(fs *pflag.FlagSet) []string {
	var env []string
	for _, s := range c.settings() {
		if f := fs.Lookup(s.flag()); f != nil && f.Changed {
			env = append(env, s.env+"="+f.Value.String())
		}
	}
	return env
}

// clusterNeeds returns an error that names the missing settings of a cluster node.
func (c *Config) clusterNeeds() error {
	if c.ClusterAddr == "" {
		return nil
	}
	var wrong []error
	for _, need := range []struct{ env, value, why string }{
		{"SVC_CLUSTER_SECRET", c.ClusterSecret, "the nodes know each other by it; make it with: openssl rand -hex 32"},
		{"SVC_DATABASE_URL", c.DatabaseURL, "the nodes share one Postgres"},
		{"SVC_REDIS_URL", c.RedisURL, "live text goes from node to node through it, such as redis://127.0.0.1:6379/0"},
		{"SVC_MASTER_KEY", c.MasterKey, "every node opens what another one sealed; make it with: openssl rand -base64 32"},
	} {
		if need.value == "" {
			wrong = append(wrong, fmt.Errorf("%s: SVC_CLUSTER_ADDR needs it: %s", need.env, need.why))
		}
	}
	return errors.Join(wrong...)
}

// dialable returns an address at which this machine reaches the listener at addr.
func dialable(addr string) string {
	for _, any := range []string{"0.0.0.0:", "[::]:", ":"} {
		if port, ok := strings.CutPrefix(addr, any); ok {
			return "127.0.0.1:" + port
		}
	}
	return addr
}

func environment(name string) (string, bool) { return os.LookupEnv(name) }

// forgetClientVariables removes the variables of Postgres' clients (PGPORT, PGSERVICE) from this process and those that
// it starts: the driver takes them for what the address of the private Postgres leaves open, and they are about another
// server.
func forgetClientVariables() {
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "PG") {
			os.Unsetenv(name)
		}
	}
}

// stdioEnv returns the part of our environment that stdio tool servers get.
func stdioEnv() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME"} {
		if v, ok := environment(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

func (c *Config) setEnv(v string) error {
	switch v {
	case "development", "production":
		c.Production = v == "production"
		return nil
	}
	return errors.New("must be development or production")
}

func (c *Config) setPrevious(v string) error {
	for _, k := range strings.Split(v, ",") {
		var key string
		if err := key32(&key)(strings.TrimSpace(k)); err != nil {
			return err
		}
		c.MasterPrevious = append(c.MasterPrevious, key)
	}
	return nil
}

// setLevel accepts the levels that leave errors in the log. zerolog knows more: fatal, disabled, numbers.
func (c *Config) setLevel(v string) (err error) {
	if err := oneOf(&v, "trace", "debug", "info", "warn", "error")(v); err != nil {
		return err
	}
	c.LogLevel, err = zerolog.ParseLevel(v)
	return err
}

func text(to *string) func(string) error {
	return func(v string) error { *to = v; return nil }
}

func truth(to *bool) func(string) error {
	return func(v string) (err error) {
		if *to, err = strconv.ParseBool(v); err != nil {
			return errors.New("must be true or false")
		}
		return nil
	}
}

func oneOf(to *string, values ...string) func(string) error {
	return func(v string) error {
		for _, ok := range values {
			if v == ok {
				*to = v
				return nil
			}
		}
		return fmt.Errorf("must be one of %s", strings.Join(values, " "))
	}
}

func hostPort(to *string) func(string) error {
	return func(v string) error {
		if _, port, err := net.SplitHostPort(v); err != nil || !isPort(port) {
			return errors.New("must be host:port, with port 0 for any free one, up to 65535")
		}
		*to = v
		return nil
	}
}

// isPort accepts a number or the name of a service, as net.Listen does.
func isPort(port string) bool {
	_, err := net.LookupPort("tcp", port)
	return err == nil && port != ""
}

// host accepts a name or an address without a port.
func host(to *string) func(string) error {
	return func(v string) error {
		if !callable(v) {
			return errors.New("must be an address or a name of this machine, without a port and not 0.0.0.0")
		}
		*to = v
		return nil
	}
}

func cdpURL(to *string) func(string) error {
	return func(v string) error {
		u, err := url.Parse(v)
		if err != nil || u.Host == "" || !slices.Contains([]string{"http", "https", "ws", "wss"}, u.Scheme) {
			return errors.New("must be an http, https, ws or wss URL")
		}
		*to = v
		return nil
	}
}

// databaseURL repeats no part of the value: in one that cannot be read, the password may be anywhere.
func databaseURL(to *string) func(string) error {
	return func(v string) error {
		err := pg.Readable(v)
		if file := new(fs.PathError); errors.As(err, &file) {
			return fmt.Errorf("a file that it names cannot be read: %w", file)
		}
		if err != nil {
			return errors.New("must be a Postgres URL, such as postgres://svc:password@db.internal:5432/svc?sslmode=verify-full, with what is special in the password percent-encoded")
		}
		*to = v
		return nil
	}
}

// peerAddr accepts an address that other nodes can dial: not the unspecified address, and
// not port 0.
func peerAddr(to *string) func(string) error {
	return func(v string) error {
		host, port, err := net.SplitHostPort(v)
		if ip, _ := netip.ParseAddr(host); err != nil || host == "" || ip.Unmap().IsUnspecified() || !isPort(port) || port == "0" {
			return errors.New("must be host:port as the other nodes dial it: this machine's own address, not 0.0.0.0, and a port that stays")
		}
		*to = v
		return nil
	}
}

func baseURL(to *string) func(string) error {
	return func(v string) error {
		u, err := url.Parse(v)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return errors.New("must be an http or https URL")
		}
		if u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
			return errors.New("must be an http or https URL without user, query and fragment")
		}
		*to = strings.TrimRight(v, "/")
		return nil
	}
}

func key32(to *string) func(string) error {
	return func(v string) error {
		if _, err := vault.ParseKey(v); err != nil {
			return fmt.Errorf("%w; make it with: openssl rand -base64 32", err)
		}
		*to = v
		return nil
	}
}

// minClusterSecret is in characters. A peer that can reach a node's port can try secrets
// offline after one handshake.
const minClusterSecret = 32

func longSecret(to *string) func(string) error {
	return func(v string) error {
		if len(v) < minClusterSecret {
			return fmt.Errorf("must have at least %d characters; make it with: openssl rand -hex 32", minClusterSecret)
		}
		*to = v
		return nil
	}
}

func redisURL(to *string) func(string) error {
	return func(v string) error {
		u, err := url.Parse(v)
		if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" && u.Scheme != "unix" || u.Host == "" && u.Path == "" {
			return errors.New("must be a redis, rediss or unix URL")
		}
		*to = v
		return nil
	}
}

func prefixes(to *[]netip.Prefix) func(string) error {
	return func(v string) error {
		for _, s := range strings.Split(v, ",") {
			p, err := netip.ParsePrefix(strings.TrimSpace(s))
			if err != nil {
				return errors.New("must be comma-separated CIDRs such as 127.0.0.0/8")
			}
			*to = append(*to, p.Masked())
		}
		return nil
	}
}

func joinPrefixes(ps []netip.Prefix) string {
	texts := make([]string, len(ps))
	for i, p := range ps {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}

func count(to *int) func(string) error {
	return func(v string) (err error) {
		if *to, err = strconv.Atoi(v); err != nil || *to < 0 {
			return errors.New("must be a whole number of at least 0")
		}
		return nil
	}
}

func positive(to *int) func(string) error {
	return func(v string) error {
		if err := count(to)(v); err != nil || *to == 0 {
			return errors.New("must be a whole number above 0")
		}
		return nil
	}
}

// maxCapacity and longestFill bound a bucket's tokens and the time in which they come, so that the sums of both stay
// exact.
const (
	maxCapacity = 1_000_000_000
	longestFill = 10 * 365 * 24 * time.Hour
)

func capacity(to *int) func(string) error {
	return func(v string) error {
		if err := positive(to)(v); err != nil || *to > maxCapacity {
			return fmt.Errorf("must be a whole number from 1 to %d", maxCapacity)
		}
		return nil
	}
}

func rate(to *float64) func(string) error {
	return func(v string) (err error) {
		if *to, err = strconv.ParseFloat(v, 64); err != nil || !(*to > 0) || *to > 1e9 {
			return errors.New("must be a number above 0")
		}
		return nil
	}
}

func duration(to *time.Duration) func(string) error {
	return func(v string) (err error) {
		if *to, err = time.ParseDuration(v); err != nil || *to <= 0 {
			return errors.New("must be a duration above 0, such as 15s")
		}
		return nil
	}
}

func atMost(most time.Duration, to *time.Duration) func(string) error {
	return func(v string) error {
		if err := duration(to)(v); err != nil {
			return err
		}
		if *to > most {
			return fmt.Errorf("must be at most %s", most)
		}
		return nil
	}
}

// minLease leaves a beat, which has a third of the lease, time to reach the database.
const minLease = 100 * time.Millisecond

// minHeartbeat is the shortest heartbeat: the edge visits its streams 64 times in each.
const minHeartbeat = 10 * time.Millisecond

func atLeast(least time.Duration, to *time.Duration) func(string) error {
	return func(v string) error {
		if err := duration(to)(v); err != nil || *to < least {
			return fmt.Errorf("must be a duration of at least %s, such as 3s", least)
		}
		return nil
	}
}

func fraction(to *float64) func(string) error {
	return func(v string) (err error) {
		if *to, err = strconv.ParseFloat(v, 64); err != nil || !(*to > 0 && *to < 1) {
			return errors.New("must be a number above 0 and below 1")
		}
		return nil
	}
}

// commands reads name=command pairs. The command is split at white space, without quoting
// and without a shell.
func commands(to *map[string][]string) func(string) error {
	return func(v string) error {
		*to = map[string][]string{}
		for _, s := range strings.Split(v, ",") {
			name, command, ok := strings.Cut(strings.TrimSpace(s), "=")
			argv := strings.Fields(command)
			if _, twice := (*to)[name]; !ok || name == "" || len(argv) == 0 || twice {
				return errors.New("must be comma-separated name=command, each name once")
			}
			(*to)[name] = argv
		}
		return nil
	}
}

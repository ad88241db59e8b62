package blob

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// Credentials are those of a bucket. They do not print.
type Credentials struct{ KeyID, Secret, Session string }

// String implements fmt.Stringer.
func (Credentials) String() string { return "(credentials)" }

// GoString implements fmt.GoStringer.
func (Credentials) GoString() string { return "(credentials)" }

// Location is where a store lies: a directory, or a prefix of a bucket.
type Location struct {
	Dir string

	endpoint url.URL // scheme and host
	bucket   string
	prefix   string // empty, or it ends in a slash
	region   string
	creds    Credentials
}

// defaultRegion is the one that S3-compatible servers have unless they are told another one.
const defaultRegion = "us-east-1"

// ParseLocation reads a value of SVC_FILES_URL: file:///dir, or s3://bucket/prefix with the
// parameters endpoint and region. The user info of an s3 URL takes precedence over the given
// credentials. No error quotes the URL, which may hold a secret.
func ParseLocation(raw string, given Credentials) (Location, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return Location{}, errors.New("not a URL; a key or secret in it must be percent-encoded: %2F for a slash, %2B for a plus")
	}
	switch u.Scheme {
	case "file":
		if u.Host != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || !filepath.IsAbs(u.Path) || filepath.Clean(u.Path) == "/" {
			return Location{}, errors.New("must name a directory by its absolute path, with three slashes: file:///srv/svc/files")
		}
		return Location{Dir: filepath.Clean(u.Path)}, nil
	case "s3":
	default:
		return Location{}, errors.New("the scheme must be s3 or file: s3://bucket/prefix?endpoint=https://host&region=name or file:///dir")
	}
	if u.Host == "" {
		return Location{}, errors.New("the bucket is missing: s3://bucket/prefix")
	}
	if err := s3utils.CheckValidBucketNameStrict(u.Host); err != nil {
		return Location{}, fmt.Errorf("%q is not a name of a bucket: 3 to 63 lower-case letters, digits, dots and hyphens", u.Host)
	}
	if u.Fragment != "" {
		return Location{}, errors.New("must not have a fragment")
	}
	l := Location{bucket: u.Host, region: defaultRegion, creds: given, endpoint: url.URL{Scheme: "https", Host: "s3.amazonaws.com"}}
	if l.prefix = strings.Trim(u.Path, "/"); l.prefix != "" {
		if check(l.prefix) != nil {
			return Location{}, errors.New("the prefix must consist of letters, digits, dots, hyphens and underscores, with slashes between segments that do not begin with a dot")
		}
		l.prefix += "/"
	}
	if u.User != nil {
		secret, _ := u.User.Password()
		l.creds = Credentials{KeyID: u.User.Username(), Secret: secret}
	}
	params, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Location{}, errors.New("the parameters cannot be read")
	}
	for name, values := range params {
		if !slices.Contains([]string{"endpoint", "region"}, name) || len(values) > 1 || values[0] == "" {
			return Location{}, errors.New("the parameters are endpoint and region, each once and not empty")
		}
	}
	if params.Has("region") {
		l.region = params.Get("region")
	}
	if params.Has("endpoint") {
		at := params.Get("endpoint")
		if !strings.Contains(at, "://") {
			at = "https://" + at
		}
		e, err := url.Parse(at)
		if err != nil || e.Scheme != "https" && e.Scheme != "http" || e.Hostname() == "" || e.User != nil || e.RawQuery != "" || e.Fragment != "" || strings.Trim(e.Path, "/") != "" {
			return Location{}, errors.New("the endpoint must be an http or https URL of a host and a port only, such as https://s3.example.com:9000")
		}
		l.endpoint = url.URL{Scheme: e.Scheme, Host: e.Host}
	}
	if l.creds.KeyID == "" || l.creds.Secret == "" {
		return Location{}, errors.New("the credentials are missing: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write s3://key:secret@bucket")
	}
	return l, nil
}

// GoString implements fmt.GoStringer.
func (l Location) GoString() string { return l.String() }

// String names the location for people, without credentials.
func (l Location) String() string {
	if l.Dir != "" {
		return "the directory " + l.Dir
	}
	s := "the bucket " + l.bucket + " at " + l.endpoint.String()
	if l.prefix != "" {
		s += ", prefix " + strings.TrimSuffix(l.prefix, "/")
	}
	return s
}

// Nested reports whether one of two different locations lies inside the other: a copy between them
// would copy its own copies. Two addresses of one server are not recognized.
func (l Location) Nested(other Location) bool {
	var a, b string
	switch {
	case l.Dir != "" && other.Dir != "":
		a, b = resolved(l.Dir)+"/", resolved(other.Dir)+"/"
	case l.Dir == "" && other.Dir == "" && l.bucket == other.bucket && l.endpoint.Scheme == other.endpoint.Scheme && strings.EqualFold(l.endpoint.Host, other.endpoint.Host):
		a, b = l.prefix, other.prefix
	default:
		return false
	}
	return a != b && (strings.HasPrefix(a, b) || strings.HasPrefix(b, a))
}

// resolved follows the symbolic links of as much of a path as exists.
func resolved(path string) string {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		return p
	}
	above := filepath.Dir(path)
	if above == path {
		return path
	}
	return filepath.Join(resolved(above), filepath.Base(path))
}

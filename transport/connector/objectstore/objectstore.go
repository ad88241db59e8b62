// Package objectstore reads a bucket of an S3-compatible server: path style, signature version 4,
// ListObjectsV2. The key is the identity of an object, its ETag the version.
package objectstore

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"agentsvc/schemas/source"
	"agentsvc/transport/connector/vendor"
)

const (
	perPage = 1000
	// maxTags bounds the tags and quotes of a listing. Each tag and attribute takes a few bytes there, and an object some
	// hundred once it is decoded. A page of a listing has some twenty thousand.
	maxTags = 100_000
	// maxKey bounds a key that a position keeps, in bytes; S3 allows 1,024.
	maxKey = 2048
)

type store struct {
	client *vendor.Client
	c      source.Config
	creds  *credentials.Credentials
}

// Open returns a bucket.
func Open(clients *vendor.Clients, c source.Config, given map[string]string) (source.Source, error) {
	client, err := clients.Client("the object store", c.Endpoint)
	if err != nil {
		return nil, err
	}
	client.Judge = judge
	return &store{client, c, credentials.NewStaticV4(given["access_key_id"], given["secret_access_key"], given["session_token"])}, nil
}

// judge says what the server's error code means. The status alone does not: 403 has many reasons.
func judge(status int, body []byte) *source.Fault {
	var e struct {
		Code string `xml:"Code"`
	}
	if status/100 == 5 || xml.Unmarshal(body, &e) != nil {
		return nil
	}
	f := &source.Fault{Lasting: true}
	switch e.Code {
	case "NoSuchKey":
		f.Reason, f.Gone = "the object is no longer in the bucket", true
	case "NoSuchBucket":
		f.Reason = "the bucket does not exist"
	case "InvalidAccessKeyId", "InvalidAccessKeyID":
		f.Reason, f.Login = "the object store does not know the access key id", true
	case "SignatureDoesNotMatch":
		f.Reason, f.Login = "the secret access key was refused", true
	case "ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired":
		f.Reason, f.Login = "the session token has expired or is invalid", true
	case "AccessDenied", "AllAccessDisabled":
		f.Reason = "the credentials give no right to list the bucket and to read its objects"
	case "AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException":
		f.Reason = "the region is not the bucket's, or the endpoint is not the server of that region"
	case "RequestTimeTooSkewed":
		f.Reason = "the clock of the object store and ours differ too much"
	case "InvalidObjectState":
		f.Reason = "the object is in an archive and must be restored first"
	case "SlowDown", "RequestLimitExceeded", "Throttling", "ThrottlingException", "RequestTimeout":
		return &source.Fault{Reason: "the object store limits the number of requests (" + strconv.Itoa(status) + ")", Again: true}
	default:
		return nil
	}
	f.Reason += " (" + strconv.Itoa(status) + ")"
	return f
}

// core returns a client whose one request ends with ctx; the library's own calls of a listing
// take none.
func (s *store) core(ctx context.Context, check func([]byte) bool) (*minio.Core, error) {
	u, err := url.Parse(s.c.Endpoint)
	if err != nil {
		return nil, s.client.Strange()
	}
	core, err := minio.NewCore(u.Host, &minio.Options{
		Creds: s.creds, Secure: u.Scheme == "https", Region: s.c.Region, BucketLookup: minio.BucketLookupPath,
		MaxRetries: 1, Transport: s.client.Transport(ctx, check),
	})
	if err != nil {
		return nil, &source.Fault{Reason: "the endpoint is not an address of an object store", Lasting: true}
	}
	return core, nil
}

// position of a walk: the server's token, and the last key, which stays valid when the server has
// forgotten the token.
type position struct {
	Token string `json:"t"`
	After string `json:"k"`
	vendor.Walk
}

// isListing keeps an answer that is no listing, such as a page of a proxy, from reading as an
// empty bucket, and refuses one with more tags than a page of a listing has.
func isListing(body []byte) bool {
	count := func(sign string) int { return bytes.Count(body, []byte(sign)) }
	return (count("<ListBucketResult") > 0 || count(":ListBucketResult") > 0) && count("<")+count(`"`)+count("'") <= maxTags
}

// Walk implements source.Source.
func (s *store) Walk(ctx context.Context, from source.Position, each func(context.Context, source.Page) error) error {
	core, err := s.core(ctx, isListing)
	if err != nil {
		return err
	}
	var at position
	resumed := vendor.Load(from.Resume, &at)
	for {
		after := at.After
		if at.Token != "" {
			after = "" // the token stands for it
		}
		list, err := core.ListObjectsV2(s.c.Bucket, s.c.Prefix, after, at.Token, "", perPage)
		if err != nil {
			err = s.wrong(ctx, err)
			if f := new(source.Fault); resumed && at.Token != "" && errors.As(err, &f) && f.Status == http.StatusBadRequest {
				at.Token = ""
				continue
			}
			return err
		}
		resumed = false
		if err := at.Count(len(list.Contents)); err != nil {
			return err
		}
		page := source.Page{Items: s.items(list.Contents)}
		if n := len(list.Contents); n > 0 && len(list.Contents[n-1].Key) <= maxKey {
			at.After = list.Contents[n-1].Key
		}
		if list.IsTruncated {
			if list.NextContinuationToken == at.Token || len(list.NextContinuationToken) > vendor.MaxPosition {
				return s.client.Strange()
			}
			at.Token = list.NextContinuationToken
			page.Resume = vendor.Save(at)
		} else {
			page.Last, page.Full = true, true
		}
		if err := each(ctx, page); err != nil || page.Last {
			return err
		}
	}
}

func (s *store) items(objects []minio.ObjectInfo) []source.Item {
	var out []source.Item
	for _, o := range objects {
		if o.Key == "" || strings.HasSuffix(o.Key, "/") { // a folder, as some clients make them
			continue
		}
		out = append(out, source.Item{ID: o.Key, Name: path.Base(o.Key), URI: s.uri(o.Key), Version: strings.Trim(o.ETag, `"`), Size: o.Size})
	}
	return out
}

func (s *store) uri(key string) string {
	return (&url.URL{Scheme: "s3", Host: s.c.Bucket, Path: "/" + key}).String()
}

// Fetch implements source.Source.
func (s *store) Fetch(ctx context.Context, item source.Item) (source.Content, error) {
	core, err := s.core(ctx, nil)
	if err != nil {
		return source.Content{}, err
	}
	body, info, header, err := core.GetObject(ctx, s.c.Bucket, item.ID, minio.GetObjectOptions{})
	if err != nil {
		err = s.wrong(ctx, err)
		if f := new(source.Fault); errors.As(err, &f) && f.Status == http.StatusNotFound && !f.Gone {
			one := *f
			one.Gone = true
			err = &one
		}
		return source.Content{}, vendor.OfItem(err)
	}
	kind := vendor.MediaType(header)
	if kind == "" && info.ContentType != "application/octet-stream" {
		kind = info.ContentType
	}
	return source.Content{Body: body, MediaType: kind}, nil
}

// wrong returns the fault in an error of the library.
func (s *store) wrong(ctx context.Context, err error) error {
	f := new(source.Fault)
	switch {
	case errors.As(err, &f):
		return f
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.Canceled): // the node lost its lease
		return context.Canceled
	}
	r := new(minio.ErrorResponse)
	if errors.As(err, r) && r.Code == "XMinioInvalidObjectName" {
		return &source.Fault{Reason: "the name of the object cannot be used", Lasting: true, Item: true}
	}
	return s.client.Strange()
}

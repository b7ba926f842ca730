package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

const (
	bucketScheme = "s3"
	// callTimeout bounds each call of a bucket, with its retries, and the wait for each page of a list.
	callTimeout = 5 * time.Minute
	// roleTimeout bounds each request for the credentials of the machine's role. Elsewhere than in a cloud nobody answers.
	roleTimeout = 5 * time.Second
	// getTries is how often Get reads a body. minio-go repeats requests, but does not read a body again that breaks off.
	getTries = 3
	// bucketPrefixMax bounds the prefix. With the name of a chunk, a key stays below the 1,024 bytes of S3.
	bucketPrefixMax = 512
)

// bucket is a Target in a bucket of S3, or of a store with its interface. minio-go repeats calls that fail for a moment.
type bucket struct {
	client  *minio.Client
	name    string
	prefix  string        // of all keys: empty, or it ends with a slash
	timeout time.Duration // callTimeout
}

var _ Target = (*bucket)(nil)

const bucketForm = "s3://BUCKET/PREFIX?endpoint=HOST:PORT&insecure=true&region=REGION"

var (
	endpointForm = regexp.MustCompile(`^([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)
	regionForm   = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)
	prefixForm   = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$`)
)

// bucketOptions has what a URL says of a bucket.
type bucketOptions struct {
	bucket, prefix, endpoint, region string
	insecure                         bool // HTTP instead of HTTPS
}

// parseBucket returns an error that names the part of the URL which is wrong, and what it may be.
func parseBucket(place string) (o bucketOptions, err error) {
	bad := func(field, value, want string) (bucketOptions, error) {
		if strings.Contains(value, "@") { // it could have a password
			return o, fmt.Errorf("the %s of an archive in a bucket has an @, want %s, as in %s", field, want, bucketForm)
		}
		return o, fmt.Errorf("the %s of an archive in a bucket is %q, want %s, as in %s", field, value, want, bucketForm)
	}
	u, err := url.Parse(place)
	if err != nil || u.Scheme != bucketScheme {
		return o, fmt.Errorf("the place of an archive is no URL such as %s", bucketForm) // the error could show a password
	}
	if u.User != nil {
		return o, errors.New("the URL of an archive must have no user or password: give credentials in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	}
	if u.Fragment != "" {
		return o, fmt.Errorf("the place of an archive has a #, want none, as in %s", bucketForm) // a password could follow
	}
	o = bucketOptions{bucket: u.Host, prefix: strings.Trim(u.Path, "/"), endpoint: "s3.amazonaws.com"}
	if s3utils.CheckValidBucketNameStrict(o.bucket) != nil {
		return bad("bucket", o.bucket, "3 to 63 small letters, digits, dots and dashes")
	}
	if o.prefix != "" {
		if !prefixForm.MatchString(o.prefix) || len(o.prefix) > bucketPrefixMax {
			return bad("prefix", o.prefix, fmt.Sprintf("at most %d letters, digits, dots, dashes and underscores, and slashes between names that begin with no dot", bucketPrefixMax))
		}
		o.prefix += "/"
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return o, fmt.Errorf("the query of an archive in a bucket cannot be parsed, want endpoint, insecure and region, as in %s", bucketForm)
	}
	for name, all := range values {
		value := all[0]
		switch {
		case len(all) > 1:
			return bad(name, strings.Join(all, " and "), "one")
		case name == "endpoint":
			if !endpointForm.MatchString(value) {
				return bad(name, value, "HOST or HOST:PORT, without https://")
			}
			o.endpoint = value
		case name == "insecure":
			if value != "true" && value != "false" {
				return bad(name, value, "true for HTTP, or false for HTTPS")
			}
			o.insecure = value == "true"
		case name == "region":
			if !regionForm.MatchString(value) {
				return bad(name, value, "a name such as eu-west-1")
			}
			o.region = value
		default:
			return bad("query", name, "endpoint, insecure and region")
		}
	}
	if o.insecure && !values.Has("endpoint") {
		return bad("insecure", "true", "false without an endpoint")
	}
	return o, nil
}

// openBucket sends nothing: a bucket that is missing or refuses the credentials is an error of the first call.
func openBucket(place string) (*bucket, error) {
	o, err := parseBucket(place)
	if err != nil {
		return nil, err
	}
	return newBucket(o, newCredentials(), nil)
}

// newBucket has the client send its requests by transport; nil stands for HTTP.
func newBucket(o bucketOptions, keys *credentials.Credentials, transport http.RoundTripper) (*bucket, error) {
	client, err := minio.New(o.endpoint, &minio.Options{Creds: keys, Secure: !o.insecure, Region: o.region, Transport: transport})
	if err != nil {
		return nil, fmt.Errorf("the endpoint %q of an archive cannot be used: %w", o.endpoint, err)
	}
	return &bucket{client: client, name: o.bucket, prefix: o.prefix, timeout: callTimeout}, nil
}

// keyChain finds credentials where minio-go and the AWS tools do. Unlike credentials.Chain, it returns an error if there
// are none: without them minio-go would send unsigned requests, and the store's error would not say why it refuses them.
type keyChain struct{ credentials.Chain }

var errNoCredentials = errors.New("there are no credentials for the bucket: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, " +
	"or write ~/.aws/credentials, or give the machine a role")

func newCredentials() *credentials.Credentials {
	return credentials.New(&keyChain{credentials.Chain{Providers: []credentials.Provider{
		&credentials.EnvAWS{}, &credentials.EnvMinio{}, &credentials.FileAWSCredentials{}, &credentials.FileMinioClient{},
		&credentials.IAM{Client: &http.Client{Timeout: roleTimeout}},
	}}})
}

// RetrieveWithCredContext implements credentials.Provider.
func (c *keyChain) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	v, err := c.Chain.RetrieveWithCredContext(cc)
	if err == nil && (v.AccessKeyID == "" || v.SecretAccessKey == "") {
		err = errNoCredentials
	}
	return v, err
}

// failed adds the bucket to an error of a call.
func (b *bucket) failed(err error) error {
	if err == nil {
		return nil
	}
	answer := minio.ToErrorResponse(err)
	if answer.Code == minio.NoSuchKey {
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return fmt.Errorf("bucket %s: %w", b.name, err)
}

// changed is failed for a call that changes something. A gateway's answer is none of the store.
func (b *bucket) changed(err error) error {
	if code := minio.ToErrorResponse(err).StatusCode; err != nil && (code == 0 || code >= http.StatusInternalServerError) {
		err = fmt.Errorf("%w: %w", errUnanswered, err)
	}
	return b.failed(err)
}

// Put implements Target. A bucket stores an object of one request whole or not at all.
func (b *bucket) Put(ctx context.Context, name string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	_, err := b.client.PutObject(ctx, b.name, b.prefix+name, bytes.NewReader(body), int64(len(body)),
		minio.PutObjectOptions{
			DisableMultipart: true,
			SendContentMd5:   true, // the store compares it
			// Over HTTP, minio-go signs the pieces of a body, for which an empty one has no length.
			DisableContentSha256: len(body) == 0,
		})
	return b.changed(err)
}

// Get implements Target.
func (b *bucket) Get(ctx context.Context, name string) (body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	for range getTries {
		body, err = b.get(ctx, name)
		if err == nil || ctx.Err() != nil || errors.Is(err, ErrIncomplete) || minio.ToErrorResponse(err).StatusCode != 0 { // the store answered
			break
		}
	}
	return body, b.failed(err)
}

func (b *bucket) get(ctx context.Context, name string) ([]byte, error) {
	in, info, _, err := minio.Core{Client: b.client}.GetObject(ctx, b.name, b.prefix+name, minio.GetObjectOptions{})
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if err := checkSize(name, info.Size); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(in)
	if err == nil && int64(len(body)) != info.Size {
		err = fmt.Errorf("%s ends after %d of %d bytes: %w", name, len(body), info.Size, io.ErrUnexpectedEOF)
	}
	return body, err
}

// List implements Target. A bucket lists names in pages of 1,000. A console creates a "folder" as an object whose name
// ends in a slash: that is no file.
func (b *bucket) List(ctx context.Context, prefix string) (names []string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(b.timeout, func() { cancel(fmt.Errorf("it did not list a name for %v", b.timeout)) })
	defer stalled.Stop()
	for object := range b.client.ListObjectsIter(ctx, b.name, minio.ListObjectsOptions{Prefix: b.prefix + prefix, Recursive: true}) {
		if object.Err != nil {
			err = object.Err
			break
		}
		stalled.Reset(b.timeout)
		if name := strings.TrimPrefix(object.Key, b.prefix); name != "" && !strings.HasSuffix(name, "/") {
			names = append(names, name)
		}
	}
	if ctx.Err() != nil { // then minio-go ends the list as if it were complete
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, b.failed(err)
	}
	slices.Sort(names)
	return names, nil
}

// Delete implements Target.
func (b *bucket) Delete(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	err := b.changed(b.client.RemoveObject(ctx, b.name, b.prefix+name, minio.RemoveObjectOptions{}))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

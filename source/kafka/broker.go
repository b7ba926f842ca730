// Package kafka reads a topic of Kafka's protocol for package source.
//
// It uses no consumer group, because shards store the positions, and a second reader is harmless.
// It reads only committed messages, and never resets an offset.
package kafka

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/countd/countd/source"
)

// Broker is a connection to a topic.
type Broker struct {
	cfg     *source.Config
	options []kgo.Opt
	client  *kgo.Client // for all requests except reads

	mu struct {
		sync.Mutex
		// epochs holds, by partition, the leader epoch of the last message that was read. With it,
		// the next reader detects that a new leader has other messages.
		epochs map[uint32]int32
	}
}

// Open returns a broker. The broker connects when it is used. Only tests of old brokers pass
// testOptions.
func Open(cfg *source.Config, access source.Access, testOptions ...kgo.Opt) (*Broker, error) {
	options := append([]kgo.Opt{kgo.SeedBrokers(cfg.Brokers...), kgo.ClientID("countd " + cfg.Name), kgo.ProducerBatchMaxBytes(letterBytesMax)}, testOptions...)
	if access.TLS != nil {
		options = append(options, kgo.DialTLSConfig(access.TLS))
	}
	if password := access.Password; cfg.Username != "" {
		switch cfg.Mechanism {
		case source.MechanismPlain:
			options = append(options, kgo.SASL(plain.Auth{User: cfg.Username, Pass: password}.AsMechanism()))
		case source.MechanismScram256:
			options = append(options, kgo.SASL(scram.Auth{User: cfg.Username, Pass: password}.AsSha256Mechanism()))
		case source.MechanismScram512:
			options = append(options, kgo.SASL(scram.Auth{User: cfg.Username, Pass: password}.AsSha512Mechanism()))
		}
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	b := &Broker{cfg: cfg, options: options, client: client}
	b.mu.epochs = map[uint32]int32{}
	return b, nil
}

const (
	// letterBytesMax bounds a dead letter in the client. It is higher than the bounds of topics, so
	// that the broker decides which letters are too large.
	letterBytesMax = 64 << 20
	// letterBatchBytes bounds the letters of one produce request, so that many small letters
	// together do not exceed a topic's limit.
	letterBatchBytes = 512 << 10
)

// Close closes the connections.
func (b *Broker) Close() error {
	b.client.Close()
	return nil
}

// metadata requests the cluster's id and the metadata of a topic.
func (b *Broker) metadata(ctx context.Context, name string) (cluster string, topic kmsg.MetadataResponseTopic, err error) {
	request := kmsg.NewPtrMetadataRequest()
	asked := kmsg.NewMetadataRequestTopic()
	asked.Topic = &name
	request.Topics = append(request.Topics, asked)
	response, err := request.RequestWith(ctx, b.client)
	if err != nil {
		return "", topic, err
	}
	if len(response.Topics) != 1 {
		return "", topic, fmt.Errorf("%d topics in place of one", len(response.Topics))
	}
	topic = response.Topics[0]
	err = kerr.ErrorForCode(topic.ErrorCode)
	if errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID) {
		return "", topic, source.Stalled("topic %s is missing", name)
	}
	if response.ClusterID != nil {
		cluster = *response.ClusterID
	}
	return cluster, topic, err
}

// Identity returns the ids of the cluster and the topic. Topics of a broker older than version 2.8
// have no id, so only the offsets can show that such a topic was created again.
func (b *Broker) Identity(ctx context.Context) (string, error) {
	cluster, topic, err := b.metadata(ctx, b.cfg.Topic)
	if err != nil {
		return "", err
	}
	return "cluster " + cluster + " topic " + b.cfg.Topic + " id " + hex.EncodeToString(topic.TopicID[:]), nil
}

// Partitions returns the partitions of the topic.
func (b *Broker) Partitions(ctx context.Context) ([]uint32, error) {
	_, topic, err := b.metadata(ctx, b.cfg.Topic)
	if err != nil {
		return nil, err
	}
	all := make([]uint32, 0, len(topic.Partitions))
	for _, p := range topic.Partitions {
		all = append(all, uint32(p.Partition))
	}
	return all, nil
}

// Bounds returns the first offset, and the offset after the last message. The bounds include
// messages of open transactions, which readers do not get yet.
func (b *Broker) Bounds(ctx context.Context, partition uint32) (first, end source.Position, err error) {
	const earliest, latest = -2, -1
	if first, err = b.offset(ctx, partition, earliest); err == nil {
		end, err = b.offset(ctx, partition, latest)
	}
	return first, end, err
}

func (b *Broker) offset(ctx context.Context, partition uint32, at int64) (source.Position, error) {
	request := kmsg.NewPtrListOffsetsRequest()
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = b.cfg.Topic
	asked := kmsg.NewListOffsetsRequestTopicPartition()
	asked.Partition = int32(partition)
	asked.Timestamp = at
	asked.MaxNumOffsets = 1
	topic.Partitions = append(topic.Partitions, asked)
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(ctx, b.client)
	if err != nil {
		return source.Position{}, err
	}
	if len(response.Topics) != 1 || len(response.Topics[0].Partitions) != 1 {
		return source.Position{}, errors.New("an answer without the partition")
	}
	p := response.Topics[0].Partitions[0]
	offset := p.Offset
	if len(p.OldStyleOffsets) > 0 { // answer of a broker older than version 0.10.1
		offset = p.OldStyleOffsets[0]
	}
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		return source.Position{}, err
	}
	if offset < 0 {
		return source.Position{}, fmt.Errorf("offset %d", offset)
	}
	return source.Position{Lo: uint64(offset)}, nil
}

// compacted returns a *source.StalledError if the topic is compacted, because a compacted topic
// loses unread messages without a trace. If the cleanup policy cannot be read, compacted returns an
// error. Denied returns true for that error if the user lacks the permission. Brokers older than
// version 0.11 do not report the policy; for these, compacted returns nil.
func (b *Broker) compacted(ctx context.Context) error {
	request := kmsg.NewPtrDescribeConfigsRequest()
	topic := kmsg.NewDescribeConfigsRequestResource()
	topic.ResourceType = kmsg.ConfigResourceTypeTopic
	topic.ResourceName = b.cfg.Topic
	topic.ConfigNames = []string{"cleanup.policy"}
	request.Resources = append(request.Resources, topic)
	response, err := request.RequestWith(ctx, b.client)
	if err != nil {
		return b.unlessOlder(ctx, request.Key(), err)
	}
	for _, r := range response.Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			return fmt.Errorf("cannot read the cleanup.policy of topic %s, which must not be compacted: grant DESCRIBE_CONFIGS of the topic: %w", b.cfg.Topic, err)
		}
		for _, c := range r.Configs {
			if c.Name == "cleanup.policy" && c.Value != nil && strings.Contains(*c.Value, "compact") {
				return source.Stalled("topic %s has cleanup.policy %s: messages leave it before they are read; a source needs delete", b.cfg.Topic, *c.Value)
			}
		}
	}
	return nil
}

// unlessOlder returns nil if err means that the broker is too old for the request with this key,
// and otherwise err. The client's error for unknown requests is not exported. So unlessOlder
// compares err with the client's error for ApiVersionsRequest, which such a broker does not know
// either.
func (b *Broker) unlessOlder(ctx context.Context, key int16, err error) error {
	known, failed := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, b.client)
	switch {
	case ctx.Err() != nil || failed != nil && !errors.Is(err, failed):
		return err
	case failed == nil && slices.ContainsFunc(known.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool { return k.ApiKey == key }):
		return err
	}
	return nil
}

// CheckLetters implements source.LetterQueue.
func (b *Broker) CheckLetters(ctx context.Context) error {
	_, _, err := b.metadata(ctx, b.cfg.DeadLetters)
	return err
}

// Denied reports whether the broker refuses the user or an operation.
func (b *Broker) Denied(err error) bool {
	return slices.ContainsFunc([]error{
		kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState,
		kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed,
	}, func(denied error) bool { return errors.Is(err, denied) })
}

// DeadLetter produces letters to the topic of dead letters, and waits until all in-sync replicas
// have acknowledged them. If this node ends before the acknowledgment, a letter may be written
// twice. The headers of a letter identify its message.
func (b *Broker) DeadLetter(ctx context.Context, letters []source.Letter) error {
	for part := range source.LetterBatches(letters, letterBatchBytes) {
		if err := b.produce(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

func (b *Broker) produce(ctx context.Context, letters []source.Letter) error {
	records := make([]*kgo.Record, 0, len(letters))
	for i := range letters {
		l := &letters[i]
		header := func(key, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: key, Value: []byte(value)} }
		r := &kgo.Record{Topic: b.cfg.DeadLetters, Key: []byte(l.Key()), Value: l.Value, Headers: []kgo.RecordHeader{
			header("countd-source", l.Source),
			header("countd-partition", strconv.FormatUint(uint64(l.Partition), 10)),
			header("countd-position", l.Position.String()),
			header("countd-reason", l.Reason),
		}}
		if l.Op != "" {
			r.Headers = append(r.Headers, header("countd-op", l.Op))
		}
		records = append(records, r)
	}
	err := b.client.ProduceSync(ctx, records...).FirstErr()
	if errors.Is(err, kerr.MessageTooLarge) {
		return source.Stalled("the dead letter of position %s, a message of %d bytes, is over what topic %s takes (max.message.bytes): let it take more, or set on-error: skip",
			letters[0].Position, len(letters[0].Value), b.cfg.DeadLetters)
	}
	return err
}

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The loop of Kafka's own client: consume, transform, produce. See __init__.py for its arguments. */
public class Transform {
    static final Random RANDOM = new Random();
    static volatile boolean stopped = false;

    public static void main(String[] args) throws Exception {
        String group = args[1], source = args[2], target = args[3];
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopped = true;
            try {
                main.join(10_000);
            } catch (InterruptedException e) {
                return;
            }
        }));
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", args[0]);
        config.put("reconnect.backoff.max.ms", "200");
        Map<String, Object> producing = new HashMap<>(config);
        producing.put("transactional.id", args[4]);
        producing.put("transaction.timeout.ms", "10000");
        Map<String, Object> consuming = new HashMap<>(config);
        consuming.put("group.id", group);
        consuming.put("isolation.level", "read_committed");
        consuming.put("enable.auto.commit", "false");
        consuming.put("auto.offset.reset", "earliest");
        consuming.put("session.timeout.ms", "6000");
        consuming.put("heartbeat.interval.ms", "500");
        consuming.put("fetch.max.wait.ms", "100");
        consuming.put("max.poll.records", "100");
        try (
            var producer = new KafkaProducer<>(producing, new StringSerializer(), new StringSerializer());
            var consumer = new KafkaConsumer<>(consuming, new StringDeserializer(), new StringDeserializer())
        ) {
            consumer.subscribe(List.of(source));
            untilDone(producer::initTransactions);
            while (!stopped) {
                ConsumerRecords<String, String> read = consumer.poll(Duration.ofMillis(200));
                if (read.isEmpty()) continue;
                try {
                    if (RANDOM.nextDouble() < 0.2) {
                        producer.beginTransaction();
                        send(producer, target, "aborted", read);
                        producer.flush();
                        untilDone(producer::abortTransaction);
                    }
                    producer.beginTransaction();
                    send(producer, target, "done", read);
                    producer.sendOffsetsToTransaction(read.nextOffsets(), consumer.groupMetadata());
                    untilDone(producer::commitTransaction);
                } catch (
                    ProducerFencedException | OutOfOrderSequenceException | AuthorizationException
                    | UnsupportedVersionException error
                ) {
                    throw error;
                } catch (KafkaException error) {
                    System.err.println("aborted after " + error);
                    untilDone(producer::abortTransaction);
                    rewind(consumer);
                }
            }
        } catch (KafkaException error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(3);
        }
    }

    static void send(
        KafkaProducer<String, String> producer, String target, String word, ConsumerRecords<String, String> read
    ) {
        for (ConsumerRecord<String, String> one : read) {
            producer.send(new ProducerRecord<>(target, one.partition(), null, word + " " + one.value()));
        }
    }

    /** A time-out says nothing of what came of a call: it is to be made again. */
    static void untilDone(Runnable call) {
        while (true) {
            try {
                call.run();
                return;
            } catch (TimeoutException error) {
                System.err.println("again after " + error);
            }
        }
    }

    /** Goes back to what the group has committed, in the partitions that this member still has. */
    static void rewind(KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (TopicPartition partition : consumer.assignment()) {
            OffsetAndMetadata found = committed.get(partition);
            if (found == null) consumer.seekToBeginning(List.of(partition));
            else consumer.seek(partition, found.offset());
        }
    }
}

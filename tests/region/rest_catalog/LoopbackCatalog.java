import java.io.File;
import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;
import org.apache.iceberg.Files;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/**
 * Iceberg's own REST catalog, as its tests run it, on the loopback address alone. It ends when its input does. Its
 * arguments are the database, the warehouse, the port, and properties of the catalog as name=value.
 */
public final class LoopbackCatalog {
    /** Files of this machine. */
    public static final class LocalIO implements FileIO {
        @Override
        public InputFile newInputFile(String path) {
            return Files.localInput(path);
        }

        @Override
        public OutputFile newOutputFile(String path) {
            return Files.localOutput(path.replaceFirst("^file:", ""));
        }

        @Override
        public void deleteFile(String path) {
            new File(path.replaceFirst("^file:", "")).delete();
        }
    }

    private LoopbackCatalog() {}

    public static void main(String[] arguments) throws Exception {
        JdbcCatalog catalog = new JdbcCatalog();
        Map<String, String> properties = new HashMap<>(Map.of(
            "uri", "jdbc:sqlite:" + arguments[0],
            "warehouse", arguments[1],
            "io-impl", LocalIO.class.getName(),
            "jdbc.schema-version", "V1",
            "clients", "1"));
        for (int at = 3; at < arguments.length; at++) {
            String[] pair = arguments[at].split("=", 2);
            properties.put(pair[0], pair[1]);
        }
        catalog.initialize("lake", properties);
        ServletContextHandler context = new ServletContextHandler();
        context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        Server server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[2])));
        server.setHandler(context);
        server.start();
        System.out.println(server.getURI().getPort());
        while (System.in.read() >= 0) {}
        System.exit(0);
    }
}
